"""The sections of a run's configuration: typed settings, each able to build what it describes.

[weights], [model], [times], [solver], [run]; those of [initial] are in `initial_settings`. Functions are
chosen by name from fixed lists; nothing is ever evaluated. A new model or solver adds one class here and its
name to a union.
"""

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

import equinox as eqx
import numpy as np
from jaxtyping import Array
from pydantic import BaseModel, ConfigDict, Field, model_validator

from tokenfield import weights as ensembles
from tokenfield.errors import as_whole
from tokenfield.models import (
    HardmaxAttention,
    InteractionFlow,
    Model,
    Noise,
    SoftmaxAttention,
    UnnormalisedAttention,
    ZeroTemperature,
)
from tokenfield.simulate import log_times
from tokenfield.solvers import Adaptive, Layers, RungeKutta4
from tokenfield.stochastic import EulerMaruyama, Strang
from tokenfield.tokens import as_real
from tokenfield.weights import AttentionWeights


class Section(BaseModel):
    """Settings that refuse keys they do not know."""

    model_config = ConfigDict(extra="forbid", frozen=True)


#: Settings that say which of several kinds of section is meant.
TAGS = ("kind", "law", "domain")


class Built(Section):
    """Settings whose names are the arguments of what they make; one of `TAGS` says which it is."""

    makes: ClassVar[Callable[..., Any]]

    def build(self, *first: Any) -> Any:
        """The object, made from the given first arguments and these settings."""
        return type(self).makes(*first, **self.model_dump(exclude=set(TAGS)))


#: Kinds of `Matrix` that are drawn, one for each head.
RANDOM = ("gaussian", "goe", "wishart", "spectrum")


class Matrix(Section):
    """A matrix: rows, or one of diag, identity, gaussian, goe, wishart, spectrum (random ones with a key)."""

    rows: list[Any] | None = None
    diag: list[float] | None = None
    identity: int | None = None
    gaussian: int | None = None
    goe: int | None = None
    wishart: int | None = None
    spectrum: list[float] | None = None
    key: int = 0
    heads: int | None = None

    @model_validator(mode="before")
    @classmethod
    def _plain_rows(cls, value: Any) -> Any:
        return {"rows": value} if isinstance(value, list) else value

    @model_validator(mode="after")
    def _one_kind(self) -> "Matrix":
        given = self.model_dump(exclude={"key", "heads"}, exclude_none=True)
        kinds = ", ".join(name for name in type(self).model_fields if name not in ("key", "heads"))
        if len(given) != 1:
            raise ValueError(f"hold exactly one of {kinds}, but holds {', '.join(given) or 'none'}")
        if self.heads is not None and not set(given) & set(RANDOM):
            raise ValueError(
                f"hold heads only beside {', '.join(RANDOM)}, but holds it beside {next(iter(given))}"
            )
        return self

    def build(self) -> Any:
        """The array."""
        random = (self.key, self.heads)
        makers: dict[str, Callable[[Any], Any]] = {
            "rows": lambda rows: as_real(rows, "rows"),
            "diag": np.diag,
            "identity": lambda d: np.eye(as_whole(d, "identity", 2)),
            "gaussian": lambda d: ensembles.gaussian(d, *random),
            "goe": lambda d: ensembles.goe(d, *random),
            "wishart": lambda d: ensembles.wishart(d, *random),
            "spectrum": lambda values: ensembles.with_spectrum(values, *random),
        }
        kind, value = next((k, v) for k, v in self if k in makers and v is not None)
        return makers[kind](value)


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
            return AttentionWeights.identity(as_whole(self.identity, "identity", 2))
        assert self.V is not None
        if self.B is not None:
            return AttentionWeights(self.B.build(), self.V.build())
        assert self.Q is not None and self.K is not None
        return AttentionWeights.from_qkv(self.Q.build(), self.K.build(), self.V.build())


class Softmax(Built):
    """[model] kind = "softmax"."""

    makes = SoftmaxAttention
    kind: Literal["softmax"]
    beta: float


class Unnormalised(Built):
    """[model] kind = "unnormalised"."""

    makes = UnnormalisedAttention
    kind: Literal["unnormalised"]
    beta: float


class Hardmax(Built):
    """[model] kind = "hardmax"."""

    makes = HardmaxAttention
    kind: Literal["hardmax"]


class Zero(Built):
    """[model] kind = "zero-temperature"."""

    makes = ZeroTemperature
    kind: Literal["zero-temperature"]


class Interaction(Section):
    """[model] kind = "interaction": φ(s) = s^power/power, with A = B of [weights]."""

    kind: Literal["interaction"]
    power: int = Field(ge=1)

    def build(self, weights: AttentionWeights) -> Model:
        """The model."""
        return InteractionFlow(Power(self.power), weights.B)


class Power(eqx.Module):
    """φ(s) = s^p/p."""

    p: int = eqx.field(static=True)

    def __call__(self, s: Array) -> Array:
        """The value at one number."""
        return s**self.p / self.p


ModelSettings = Annotated[Softmax | Unnormalised | Hardmax | Zero | Interaction, Field(discriminator="kind")]


class NoiseSettings(Built):
    """[noise]: κ of the Brownian motion of every token."""

    makes = Noise
    kappa: float


class Times(Section):
    """[times]: `at` a list; or `stop` with `count` times, linear from `start`, or log-spaced from `first`."""

    at: list[float] | None = None
    start: float = 0.0
    stop: float | None = None
    count: int = Field(101, ge=2)
    spacing: Literal["linear", "log"] = "linear"
    first: float | None = None

    @model_validator(mode="after")
    def _one_way(self) -> "Times":
        if (self.at is None) == (self.stop is None):
            raise ValueError("hold either at or stop, but holds " + ("both" if self.at else "neither"))
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


class AdaptiveSettings(Built):
    """[solver] kind = "adaptive"."""

    makes = Adaptive
    kind: Literal["adaptive"] = "adaptive"
    rtol: float = Adaptive().rtol
    atol: float = Adaptive().atol
    method: Literal["tsit5", "dopri8", "kvaerno5"] = "tsit5"


class RungeKutta4Settings(Built):
    """[solver] kind = "rk4"."""

    makes = RungeKutta4
    kind: Literal["rk4"]
    step: float


class LayersSettings(Built):
    """[solver] kind = "layers"."""

    makes = Layers
    kind: Literal["layers"]
    step: float


class EulerMaruyamaSettings(Built):
    """[solver] kind = "euler-maruyama", for models with [noise]."""

    makes = EulerMaruyama
    kind: Literal["euler-maruyama"]
    step: float
    key: int


class StrangSettings(Built):
    """[solver] kind = "strang", for models with [noise]."""

    makes = Strang
    kind: Literal["strang"]
    step: float
    key: int


SolverSettings = Annotated[
    AdaptiveSettings | RungeKutta4Settings | LayersSettings | EulerMaruyamaSettings | StrangSettings,
    Field(discriminator="kind"),
]


class RunSettings(Section):
    """[run]: what to keep and how to sum."""

    measure: list[Literal["order_parameter", "energy", "mean", "limit_distance"]] = ["order_parameter"]
    snapshots: list[int] | None = None
    merge_angle: float | None = None
    summation: Literal["auto", "direct", "circle", "harmonic", "merged"] = "auto"
    summation_tolerance: float | None = None
