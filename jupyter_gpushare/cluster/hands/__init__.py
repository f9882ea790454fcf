"""What the service does as the user whose job it is."""
