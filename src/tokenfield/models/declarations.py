"""What a model says of itself, so that everything that cannot do with it refuses by a sentence:

reads_order    which token asks matters (masks): no merging, no densities, no symmetries of laws
reads_number   how many tokens there are matters (sums over tokens): no merging, no densities
reads_time     weights change with depth: steps end at `jumps`; no densities
smooth         velocities have derivatives
noisy          tokens also diffuse; `common_noise`: all by one matrix of Brownian motions, no densities
adds_up        it is no more than its terms: no densities or energies otherwise
space.free     tokens have lengths: no merging, no densities
commutes(g)    turning all tokens turns their velocities: symmetries of the initial law are kept
scored         all it reads are sums of one kernel over all tokens, which can be fast
linear         the output is a matrix times the token: layers are a product of matrices
"""

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from tokenfield.models.spaces import SPHERE, Space
from tokenfield.sums.base import Sums
from tokenfield.sums.profile import Scored

if TYPE_CHECKING:
    from tokenfield.models.base import Term


class LinearOutput(NamedTuple):
    """An output S x at unit vectors x; `defect`: how far the model is from that, 0 if it is so exactly."""

    matrix: Float[Array, "d d"]
    defect: Float[Array, ""]


class Declarations(eqx.Module):
    """The declarations of a model; the defaults are those of plain attention on the sphere without noise."""

    #: Whether velocities have derivatives everywhere, so that densities can follow them.
    smooth: ClassVar[bool] = True
    #: Whether the output is the sum of the outputs of the terms at the law of the tokens, as densities and
    #: energies take it.
    adds_up: ClassVar[bool] = True
    #: Whether its noise is one matrix of Brownian motions for all tokens, not a motion of each.
    common_noise: ClassVar[bool] = False

    @property
    @abstractmethod
    def d(self) -> int:
        """Dimension of the tokens it acts on."""

    @property
    @abstractmethod
    def terms(self) -> "tuple[Term, ...]":
        """What it is the sum of."""

    @property
    def space(self) -> Space:
        """Where the tokens live."""
        return SPHERE

    @property
    def reads_order(self) -> bool:
        """Whether it matters which token asks."""
        return any(term.reads_order for term in self.terms)

    @property
    def reads_number(self) -> bool:
        """Whether it matters how many tokens there are, beside their law."""
        return any(term.reads_number for term in self.terms)

    @property
    def reads_time(self) -> bool:
        """Whether the field changes with time."""
        return self.space.reads_time

    @property
    def noisy(self) -> bool:
        """Whether tokens also diffuse."""
        return any(term.noisy for term in self.terms)

    @property
    def jumps(self) -> tuple[float, ...]:
        """Times at which the field changes at once; no step goes across one."""
        return self.space.jumps

    def next_jump(self, t: Float[Array, ""]) -> Float[Array, ""]:
        """The first jump after t, infinity if there is none; a jump that t is at to rounding is behind it."""
        times = jnp.asarray(np.array([*sorted(self.jumps), np.inf]))
        later = times > t + 1e-9 * (1 + jnp.abs(t))
        return times[jnp.argmax(later)]

    def at(self, t: Float[Array, ""] | float) -> Self:
        """The model at a time, with weights that no longer change."""
        return self

    def during(self, start: Float[Array, ""]) -> Self:
        """The model for a step that begins at this time and does not go beyond the next jump."""
        return self

    @property
    def log_time_unit(self) -> Float[Array, ""]:
        """L such that one unit of this model's time is e^{−L} of the equation's; 0 if not said."""
        return jnp.zeros(())

    @property
    def scored(self) -> Scored | None:
        """The heads whose sums can be fast: one kernel over all tokens on the sphere; None otherwise."""
        return None

    @property
    def linear(self) -> LinearOutput | None:
        """The output as a matrix times the token, whatever the other tokens are; None if it is not."""
        return None

    def commutes(self, turn: Float[np.ndarray, "d d"]) -> bool:
        """Whether turning all tokens by an orthogonal matrix turns their velocities; False if not known."""
        return False

    @property
    def drift(self) -> Self:
        """The model without its noise."""
        return self

    @property
    def diffusion(self) -> Float[Array, ""]:
        """D in ∂_tμ = DΔμ − div(μX), in the model's own time unit; 0 without noise."""
        return jnp.zeros(())

    def noise_shape(self, n: int) -> tuple[int, int]:
        """Shape of the standard normal numbers behind one increment of the noise of n tokens."""
        return (n, self.d)

    def noise(
        self,
        y: Float[Array, "n d"],
        weights: Float[Array, "n"],
        sums: Sums,
        h: Float[Array, ""] | float,
        normal: Float[Array, "rows d"],
    ) -> Float[Array, "n d"]:
        """Increment of the noise in a step, before projection.

        Args:
            y: tokens (n, d) at the beginning of the step.
            weights: of the tokens (n,).
            sums: how sums over them are computed.
            h: length of the step.
            normal: standard normal numbers of shape `noise_shape(n)`.
        """
        return jnp.sqrt(2 * self.diffusion * h) * normal
