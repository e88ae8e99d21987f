"""Sections of a run's configuration that are the same whatever is registered.

[weights], [noise], [times] and [run]; those of [model], [initial] and [solver] are made from the registry
(choices.py). Functions are chosen by name from what is registered; nothing in a file is ever evaluated.
"""

from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from tokenfield.config.choices import Choice, Name, RegisteredSection
from tokenfield.config.matrices import Matrix
from tokenfield.config.section import Section
from tokenfield.errors import as_whole, require_room
from tokenfield.models.terms import Noise
from tokenfield.models.weights import AttentionWeights
from tokenfield.registry import Entry
from tokenfield.runs.times import log_times

#: The most times that a file may ask for.
MOST_TIMES = 10**8

ModelSettings = Annotated[RegisteredSection, Choice("model")]
SolverSettings = Annotated[RegisteredSection, Choice("solver")]
TermSettings = Annotated[RegisteredSection, Choice("term")]
SpaceSettings = Annotated[RegisteredSection, Choice("space")]


class WeightsSettings(Section):
    """[weights]: V, and either B or Q and K; all identity if only `identity = d` is given."""

    identity: int | None = None
    B: Matrix | None = None
    V: Matrix | None = None
    Q: Matrix | None = None
    K: Matrix | None = None

    @model_validator(mode="after")
    def _complete(self) -> "WeightsSettings":
        given = {name for name in ("identity", "B", "V", "Q", "K") if getattr(self, name) is not None}
        if given not in ({"identity"}, {"B", "V"}, {"Q", "K", "V"}):
            raise ValueError(
                "hold identity alone, or B and V, or Q, K and V, but holds "
                + (", ".join(sorted(given)) or "nothing")
            )
        return self

    def build(self) -> AttentionWeights:
        """The attention weights."""
        if self.identity is not None:
            d = as_whole(self.identity, "identity", 2)
            require_room(2 * d**2, "identity", d)
            return AttentionWeights.identity(d)
        assert self.V is not None
        if self.B is not None:
            return AttentionWeights(self.B.build(), self.V.build())
        assert self.Q is not None and self.K is not None
        return AttentionWeights.from_qkv(self.Q.build(), self.K.build(), self.V.build())


class NoiseSettings(Section):
    """[noise]: κ of the Brownian motion of every token."""

    kappa: float

    def build(self) -> Noise:
        """The noise."""
        return Noise(self.kappa)


class Times(Section):
    """[times]: `at` a list; or `stop` with `count` times, linear from `start`, or log-spaced from `first`."""

    at: list[float] | None = None
    start: float = 0.0
    stop: float | None = None
    count: int = Field(101, ge=2, le=MOST_TIMES)
    spacing: Literal["linear", "log"] = "linear"
    first: float | None = None

    @model_validator(mode="after")
    def _one_way(self) -> "Times":
        if (self.at is None) == (self.stop is None):
            both = self.at is not None
            raise ValueError("hold either at or stop, but holds " + ("both" if both else "neither"))
        if self.at is not None and not self.at:
            raise ValueError("hold at least one time in at, but holds none")
        if (self.spacing == "log") != (self.first is not None):
            raise ValueError("hold first exactly if spacing is 'log', but does not")
        if self.spacing == "log" and self.count < 3:
            raise ValueError(f"hold a count of at least 3 if spacing is 'log', but holds {self.count}")
        return self

    def build(self) -> np.ndarray:
        """The times."""
        if self.at is not None:
            return np.array(self.at)
        assert self.stop is not None
        if self.first is not None:
            return self.start + log_times(self.first, self.stop - self.start, self.count - 1)
        return np.linspace(self.start, self.stop, self.count)


def _of_tokens(entry: Entry) -> bool:
    return entry.facts["of"] in ("tokens", "law")


class RunSettings(Section):
    """[run]: what to keep and how to sum."""

    measure: list[Annotated[str, Name("measure", _of_tokens)]] = Field(default=["order_parameter"])
    snapshots: list[int] | None = None
    merge_angle: float | None = None
    summation: Annotated[str, Name("sums")] = "auto"
    summation_tolerance: float | None = None
