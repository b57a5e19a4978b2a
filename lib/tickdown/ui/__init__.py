"""The command line: arguments, commands, what is printed."""
