"""Depth as time: weights that change from layer to layer (theory §6.5, §6.8).

    Depth(models, step)          each model acts for `step` units of time, one after the other
    Schedule(function, jumps)    function(t) is the model at time t, smooth between the jumps
    RandomLayers(draw, step, key)   a new model for every layer, draw(key of the layer)

Steps of adaptive solvers end at the jumps; with `Layers(step)` a `Depth` is the network itself.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray
from numpy.typing import ArrayLike

from tokenfield.errors import InputError, as_key, as_number, is_traced, require, require_kind
from tokenfield.laws.tokens import Tokens, as_real
from tokenfield.models.base import Model, Term, joined
from tokenfield.models.chosen import choose, in_plain_time
from tokenfield.models.spaces import Space
from tokenfield.sums.base import Sums
from tokenfield.sums.direct import DIRECT
from tokenfield.sums.profile import Scored

#: A time this much before a jump, relative to the step of a layer, counts as the jump: sums of steps round.
AT_THE_JUMP = 1e-9


class Varying(Model):
    """A model that changes with time; `first` is the one at time 0, which says dimension, space and kind."""

    @property
    @abstractmethod
    def first(self) -> Model:
        """The model at time 0."""

    @property
    def d(self) -> int:
        """Dimension of the tokens it acts on."""
        return self.first.d

    @property
    def terms(self) -> tuple[Term, ...]:
        """Those of the first model."""
        return self.first.terms

    @property
    def space(self) -> Space:
        """That of the first model; all have the same."""
        return self.first.space

    @property
    def smooth(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the first model is."""
        return self.first.smooth

    @property
    def reads_time(self) -> bool:
        """It does."""
        return True

    def output(
        self, x: Array, tokens: Tokens, sums: Sums = DIRECT, rows: Array | None = None
    ) -> Float[Array, "m d"]:
        """Output at time 0; at others use `at(t).output`."""
        return self.first.output(x, tokens, sums, rows)

    def check(self, tokens: Tokens) -> None:
        """As the first model."""
        self.first.check(tokens)


class Layered(Varying):
    """A model for every layer: layer l acts from l·step on, and does not change while it acts."""

    step: eqx.AbstractVar[float]

    @abstractmethod
    def layer(self, number: Int[Array, ""] | int) -> Model:
        """The model of one layer, counted from 0."""

    @property
    def period(self) -> int | None:
        """Number of layers after which they begin again; None if they do not."""
        return None

    @property
    def last_jump(self) -> float:
        """Time from which on nothing changes any more."""
        return np.inf

    def next_jump(self, t: Float[Array, ""]) -> Float[Array, ""]:
        """The end of the layer at time t."""
        after = self.step * (self.number(t) + 1)
        return jnp.where(after <= self.last_jump * (1 + AT_THE_JUMP), after, jnp.inf)

    def number(self, t: Float[Array, ""] | float) -> Int[Array, ""]:
        """Which layer acts at time t, counted from 0."""
        return jnp.floor(jnp.asarray(t) / self.step + AT_THE_JUMP).astype(int)

    def at(self, t: Float[Array, ""] | float) -> Model:
        """The layer that acts at time t."""
        return self.layer(self.number(t))

    def during(self, start: Float[Array, ""]) -> Model:
        """One layer: no step goes beyond its end."""
        return self.at(start)


class Depth(Layered):
    """Each model acts for `step` units of time, one after the other.

    Args:
        models: the layers in order, of one dimension and in one space.
        step: time that each acts for.
        repeat: begin again after the last; otherwise the last one stays on.
    """

    models: tuple[Model, ...]
    step: float = eqx.field(static=True)
    repeat: bool = eqx.field(static=True)

    def __init__(self, models: Sequence[Model], step: float = 1.0, repeat: bool = False):
        listed = isinstance(models, Sequence) and len(models) > 0
        require(listed, "models", "be a list of at least one model", repr(models))
        for model in models:
            _check_layer(model, models[0])
        self.models, self.step, self.repeat = tuple(models), _as_step(step), bool(repeat)

    @property
    def first(self) -> Model:
        """The first layer."""
        return self.models[0]

    @property
    def smooth(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether every layer is."""
        return all(model.smooth for model in self.models)

    @property
    def reads_order(self) -> bool:
        """Whether any layer does."""
        return any(model.reads_order for model in self.models)

    @property
    def reads_number(self) -> bool:
        """Whether any layer does."""
        return any(model.reads_number for model in self.models)

    @property
    def jumps(self) -> tuple[float, ...]:
        """Times at which a layer follows another; the first period only, if they repeat."""
        return tuple(self.step * k for k in range(1, len(self.models) + self.repeat))

    @property
    def last_jump(self) -> float:
        """The beginning of the last layer, unless they repeat."""
        return np.inf if self.repeat else self.step * (len(self.models) - 1)

    @property
    def period(self) -> int | None:
        """The number of models, if they repeat."""
        return len(self.models) if self.repeat else None

    def layer(self, number: Int[Array, ""] | int) -> Model:
        """The model of one layer; beyond the last one the last, or from the first on if they repeat."""
        number, count = jnp.asarray(number), len(self.models)
        return choose(self.models, number % count if self.repeat else jnp.clip(number, 0, count - 1))

    @property
    def scored(self) -> Scored | None:
        """The heads of all layers."""
        return joined([model.scored for model in self.models])

    def commutes(self, turn: Float[np.ndarray, "d d"]) -> bool:
        """Whether every layer does."""
        return all(model.commutes(turn) for model in self.models)

    def check(self, tokens: Tokens) -> None:
        """As every layer."""
        for model in self.models:
            model.check(tokens)


class Schedule(Varying):
    """The model at time t is `function(t)`.

    Args:
        function: a JAX function of the time that gives a model, always of the same kind.
        jumps: times at which it changes at once; between them it is smooth, as solvers expect.
    """

    function: Callable[[Array], Model]
    times: tuple[float, ...] = eqx.field(static=True)

    def __init__(self, function: Callable[[Array], Model], jumps: ArrayLike = ()):
        require(callable(function), "function", "be a function of the time", repr(function))
        times = np.asarray(as_real(jumps, "jumps")) if np.size(jumps) else np.zeros(0)
        require(times.ndim == 1 and bool(np.isfinite(times).all()), "jumps", "be finite times", repr(jumps))
        self.function, self.times = function, tuple(float(t) for t in np.sort(times))
        _check_layer(self.first, self.first)

    @property
    def first(self) -> Model:
        """The model at time 0."""
        return self.function(jnp.zeros(()))

    @property
    def jumps(self) -> tuple[float, ...]:
        """As given."""
        return self.times

    def at(self, t: Float[Array, ""] | float) -> Model:
        """function(t), in the time of the equation."""
        return in_plain_time(self.function(jnp.asarray(t, float)))


class RandomLayers(Layered):
    """A new model for every layer: layer l, which acts from l·step on, is `draw(key of l)`.

    The key of a layer depends on `key` and on the number of the layer only, so that a run that is resumed or
    split sees the same layers; all tokens see the same one.

    Args:
        draw: a JAX function of a random key that gives a model, always of the same kind.
        step: time that each layer acts for.
        key: an integer; under `jax.vmap` it may be an array of them, one network for each.
    """

    draw: Callable[[PRNGKeyArray], Model]
    step: float = eqx.field(static=True)
    # an array, so that other keys run the same compiled program
    key: Int[Array, ""]

    def __init__(self, draw: Callable[[PRNGKeyArray], Model], step: float = 1.0, key: int | Array = 0):
        require(callable(draw), "draw", "be a function of a random key", repr(draw))
        self.draw, self.step = draw, _as_step(step)
        self.key = jnp.asarray(key if is_traced(key) else as_key(key))
        try:
            layer = eqx.filter_eval_shape(lambda: self.first)
        except jax.errors.JAXTypeError as error:
            raise InputError(
                "`draw` must be a JAX function (jax.random, jax.numpy) of a random key, but"
                f" {draw!r} cannot be traced: {str(error).partition(chr(10))[0]}"
            ) from error
        _check_layer(layer, layer)

    @property
    def first(self) -> Model:
        """Layer 0."""
        return self.layer(0)

    def layer(self, number: Int[Array, ""] | int) -> Model:
        """The model that is drawn with the key of the layer."""
        return in_plain_time(self.draw(jax.random.fold_in(jax.random.key(self.key), number)))


def _as_step(step: float) -> float:
    require(0 < as_number(step, "step") < np.inf, "step", "be positive and finite", step)
    return float(step)


def _check_layer(model: Model, like: Model) -> None:
    require_kind(model, Model, "model")
    require(model.d == like.d, "models", f"have one dimension, {like.d}", model.d)
    same = type(model.space) is type(like.space)
    require(same, "models", "live in one space", f"in {type(model.space).__name__} and another")
    require(not model.reads_time, "models", "not change with time themselves", type(model).__name__)
    require(not model.noisy, "models", "have no noise", "noisy")
    unit = model.log_time_unit
    if not is_traced(unit) and isinstance(unit, jax.Array):
        plain = float(unit) == 0
        require(plain, "models", "need no time unit of their own (β‖B‖ at most 300)", f"e^{float(unit):g}")
