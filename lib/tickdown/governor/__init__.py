"""When a task runs next and why, over a day ahead too, and why what was missed was. No clock, no disk."""
