"""Grids of runs: declared in one file, computed by many workers, safe against any interruption."""
