"""Sections of a declared sweep from the objects that recipes have in hand."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import xarray as xr

from tokenfield.laws.tokens import Tokens
from tokenfield.models.weights import AttentionWeights
from tokenfield.runs.trajectory import Trajectory
from tokenfield.solvers.ode import Adaptive
from tokenfield.sweeps.dataset import trajectory

#: One case of a sweep: dotted name of a setting → its value.
Case = Mapping[str, Any]


def attention(weights: AttentionWeights) -> dict[str, Any]:
    """[weights]."""
    return {"B": np.asarray(weights.B).tolist(), "V": np.asarray(weights.V).tolist()}


def atoms(tokens: Tokens) -> dict[str, Any]:
    """[initial]: the tokens themselves."""
    x, mass = np.asarray(tokens.x).tolist(), np.asarray(tokens.weights).tolist()
    return {"law": "atoms", "x": x, "weights": mass}


def adaptive(solver: Adaptive) -> dict[str, Any]:
    """[solver]."""
    return {"kind": "adaptive", "rtol": solver.rtol, "atol": solver.atol}


def together(cases: Iterable[Case]) -> dict[str, Any]:
    """[sweep] with one axis, along which all settings of the cases change together."""
    listed = list(cases)
    table: dict[str, Any] = {}
    for name in listed[0]:
        section, _, setting = name.partition(".")
        values = [case[name] for case in listed]
        if setting:
            table.setdefault(section, {})[setting] = values
        else:
            table[section] = values
    return {"zip": [table]}


def runs(found: xr.Dataset) -> list[Trajectory]:
    """The runs of a sweep with one axis, in order."""
    (axis,) = found.state.dims
    return [trajectory(found.isel({axis: k})) for k in range(found.sizes[axis])]
