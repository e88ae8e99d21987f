"""Runs: carry tokens along a model, record, store, resume."""
