"""What kind of trouble an end is, and what follows: retry, heal, suspend. No clock, no disk."""
