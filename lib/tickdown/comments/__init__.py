"""What people write to a task, and what becomes of it."""
