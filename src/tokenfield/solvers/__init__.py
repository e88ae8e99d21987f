"""Ways to step in time."""
