"""Runs as TOML files."""
