"""The page files to which squeezed iterations write, and their quota."""
