"""The command line and what it shows: tables, reports and checks of the installation."""
