"""What one attempt is made of: the command with its environment, and what it prints."""
