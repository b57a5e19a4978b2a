"""A task file: found, read, understood, edited in place."""
