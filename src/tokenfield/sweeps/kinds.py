"""The kinds of cells that a sweep may have.

A file's kind is told by a section of that name; a file without one is a grid of runs of `simulate`. A new
kind is a class that follows `protocol.Kind`, with a line here; it is imported when a sweep needs it.
"""

import importlib
from functools import cache

from tokenfield.sweeps.protocol import Kind

#: Where each kind is defined: module of this package and class.
KINDS = {
    "simulate": ("simulation", "SimulationCells"),
    "density": ("mean_field", "DensityCells"),
    "pairs": ("pairs", "PairCells"),
}


@cache
def kind_of(name: str) -> Kind:
    """The kind with this name."""
    module, kind = KINDS[name]
    return getattr(importlib.import_module(f"tokenfield.sweeps.{module}"), kind)()
