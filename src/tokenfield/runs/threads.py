"""How many threads compute: fast sums add up in another order, and round otherwise, with another number."""

import os
from collections.abc import Sequence


def thread_counts() -> dict[str, int]:
    """The threads that XLA and OpenMP (non-uniform Fourier transforms) use in this process."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {"XLA": _asked("NPROC", cores), "OpenMP": _asked("OMP_NUM_THREADS", cores)}


def threads_note(used: Sequence[dict[str, int]]) -> str:
    """What it means that the parts of a run had other numbers of threads; nothing if they had not."""
    if len({_words(counts) for counts in used}) <= 1:
        return ""
    return (
        f"begun with {_words(used[0])} and gone on with {_words(used[-1])}: where fast sums were used, its"
        " last digits may differ from those of an undisturbed run"
    )


def _words(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name} threads" for name, count in counts.items())


def _asked(variable: str, otherwise: int) -> int:
    """What a variable of the environment says, if it is a number."""
    text = os.environ.get(variable, "").partition(",")[0].strip()
    return int(text) if text.isdecimal() and int(text) > 0 else otherwise
