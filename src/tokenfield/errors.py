"""What the program says when it cannot go on: one sentence, in one form.

Bad input is an `InputError`, raised before any work. Numerical or disk trouble during a run is a
`RunError`; whatever was finished by then is kept and travels with it.
"""

import os
from numbers import Integral, Real
from typing import Any

import jax
import jax.core
import numpy as np

#: Letters of a value that an error shows.
LONGEST_VALUE = 200
#: Bytes of memory taken for granted where a system does not say how many it has.
FALLBACK_MEMORY = 2**36


class InputError(ValueError):
    """An argument that cannot be used; the message names it, its value and what it must be."""


class RunError(RuntimeError):
    """A run that could not be finished; `trajectory` holds the part that was."""

    def __init__(self, sentence: str, trajectory: Any = None):
        super().__init__(sentence)
        self.trajectory = trajectory


def require(holds: bool, name: str, must: str, value: object) -> None:
    """Raise "`name` must ..., but was value" unless the condition holds.

    Args:
        holds: the condition.
        name: of the argument, as the user wrote it.
        must: what it must be, the middle of the sentence: "be positive".
        value: what it was.
    """
    if not holds:
        raise InputError(f"`{name}` must {must}, but was {_short(value)}")


def _short(value: object) -> str:
    """The value on one line, and not a page of numbers."""
    text = " ".join(str(value).split())
    return text if len(text) <= LONGEST_VALUE else text[:LONGEST_VALUE] + " …"


def require_room(entries: int, name: str, value: object) -> None:
    """Refuse an array that cannot fit into the memory of this machine, before it is asked for.

    Args:
        entries: how many doubles there are.
        name: of the argument.
        value: what it was.
    """
    try:
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # a system that does not say
        there = FALLBACK_MEMORY
    if 8 * entries > there / 2:  # every array has a copy somewhere
        raise InputError(
            f"`{name}` must fit into memory, but {_short(value)} takes {float(min(8 * entries, 10**300)):.2g}"
            f" bytes where there are {there:.2g}"
        )


def as_number(value: Any, name: str) -> float:
    """The value as a float, or a sentence that it is none."""
    require(isinstance(value, Real) and not isinstance(value, bool), name, "be a number", repr(value))
    return float(value)


def as_whole(value: Any, name: str, least: int) -> int:
    """The value as a whole number, or a sentence that it is none.

    Args:
        value: what the user gave.
        name: of the argument.
        least: the smallest number allowed.
    """
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    require(whole and int(value) >= least, name, f"be a whole number, at least {least}", repr(value))
    return int(value)


def as_key(value: Any) -> int:
    """The value as the integer from which random numbers are made."""
    key = as_whole(value, "key", 0)
    require(key < 2**63, "key", "be less than 2^63", key)
    return key


def require_kind(value: object, kind: type, name: str) -> None:
    """Raise "`name` must be a Kind, but was ..." unless the value is of this class.

    Args:
        value: what the user gave.
        kind: the class it must be of.
        name: of the argument.
    """
    article = "an" if kind.__name__[0] in "AEIOU" else "a"
    require(isinstance(value, kind), name, f"be {article} {kind.__name__}", type(value).__name__)


def is_traced(*values: object) -> bool:
    """Whether any leaf is a JAX tracer, whose value cannot be looked at."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(values))


def require_increasing(times: np.ndarray, name: str) -> None:
    """Raise unless the times are a list of finite numbers, each greater than the one before."""
    require(times.ndim == 1 and times.size >= 1, name, "be a list of times", f"of shape {times.shape}")
    require(bool(np.all(np.isfinite(times))), name, "be finite", times[~np.isfinite(times)][:1])
    back = np.flatnonzero(np.diff(times) <= 0)
    if back.size:
        k = int(back[0])
        one, after = f"{name}[{k}] = {times[k]:g}", f"{name}[{k + 1}] = {times[k + 1]:g}"
        raise InputError(f"`{name}` must be increasing, but {after} follows {one}")
