"""What people, agents and tasks can ask for."""
