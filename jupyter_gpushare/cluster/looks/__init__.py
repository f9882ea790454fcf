"""What the engine and the directories of jobs show, and what follows from it."""
