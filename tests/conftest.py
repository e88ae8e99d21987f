"""Compiled programs are kept on disk, so that workers, subprocesses and the next run share them."""

import os
from pathlib import Path

import pytest

CACHE = Path(__file__).parent.parent / ".pytest_cache" / "jax"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
#: Every program in memory holds some memory maps, and a process that asks Linux for more than 65,530 dies.
MOST_MAPS = 20_000


@pytest.fixture(autouse=True, scope="module")
def forget_programs():
    """Drop the programs of earlier files when there are many."""
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MOST_MAPS:
        import jax  # only now that the variables above are set

        jax.clear_caches()
