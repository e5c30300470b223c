"""How well models and planners solve the tasks, with how certain that is."""
