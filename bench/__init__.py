"""What Tickdown costs, measured side by side with what it is compared to: `make bench`."""
