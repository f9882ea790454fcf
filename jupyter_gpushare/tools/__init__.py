"""The command line and its output: tables, reports and checks of the installation."""
