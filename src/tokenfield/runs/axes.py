"""Names of what a run saves, and of the axes of its arrays."""

#: What is recorded at snapshots, not at every time.
SNAPSHOT = ("x", "radii")
#: The arrays of a store that are known before the first step.
FIXED = ("time", "snapshot", "weights")


def axes(name: str, rank: int) -> tuple[str, ...]:
    """Names of the axes of a stored array."""
    if name in SNAPSHOT:
        return ("snapshot", "token", "dim")[:rank]
    return ("time", *(f"{name}_{i}" for i in range(1, rank)))
