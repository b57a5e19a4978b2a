"""What people are told, and how it reaches them."""
