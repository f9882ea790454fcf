"""What launches processes: one file for each kind of engine, with the six verbs of `engine`."""
