"""LayerNorm and the sphere behind it (theory §7.1).

    N(x) = r G u + b,    u = C x/√(|C x|² + d·eps),    C = I − 11ᵀ/d,    r = √d

Whatever a LayerNorm puts out lies on the image of the unit sphere of 1^⊥ under u ↦ rGu + b, up to eps.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float


class LayerNorm(eqx.Module):
    """Gain G as a diagonal (d,), bias b (d,), and the number that keeps the root from 0."""

    gain: Float[Array, "d"]
    bias: Float[Array, "d"]
    eps: float = eqx.field(static=True)

    def __call__(self, x: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """rGu + b."""
        return self.unfold(self.direction(x))

    @property
    def radius(self) -> float:
        """r = √d."""
        return self.gain.shape[-1] ** 0.5

    @property
    def flat_gain(self) -> Float[Array, ""]:
        """g = rms(G)."""
        return jnp.sqrt(jnp.mean(self.gain**2))

    def direction(self, x: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """u of a token that the norm reads; of length 1 up to eps."""
        y = centred(x)
        return y / jnp.sqrt(jnp.sum(y * y, axis=-1, keepdims=True) + y.shape[-1] * self.eps)

    def fold(self, x: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """u of a token that the norm has put out: (x − b)/(rG)."""
        return (x - self.bias) / (self.radius * self.gain)

    def unfold(self, u: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """rGu + b."""
        return self.radius * self.gain * u + self.bias


def centred(x: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
    """C x: the mean of the coordinates taken away."""
    return x - jnp.mean(x, axis=-1, keepdims=True)
