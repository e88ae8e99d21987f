"""Which parameters of a test are tried every time."""

import pytest


def mostly_slow(values, quick):
    """Parameters of which only those in `quick` are tried every time: each compiles programs of its own."""

    def many(value):
        return value if isinstance(value, tuple) else (value,)

    return [pytest.param(*many(v), marks=() if v in quick else pytest.mark.slow) for v in values]
