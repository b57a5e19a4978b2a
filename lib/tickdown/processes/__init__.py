"""Processes of the operating system: who is who, starting one, ending all that it started; the lock of a task."""
