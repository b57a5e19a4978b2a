"""Self-healing: whether an agent may repair a task, the guard rails around it, and the proof."""
