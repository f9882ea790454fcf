"""The service acts as the user whose job it is."""
