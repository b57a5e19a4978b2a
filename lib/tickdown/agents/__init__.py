"""AI agents as programs: how they are called, what they answer, the texts they are given."""
