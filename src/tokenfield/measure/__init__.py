"""What is measured on tokens and trajectories."""
