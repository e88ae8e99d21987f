"""Softmax attention whose keys carry offsets that follow from the tokens: L2 and Sinkhorn attention."""

import equinox as eqx
from jaxtyping import Array, Float

from tokenfield.models.attention import Attention
from tokenfield.models.kernels import Kernel, Softmax
from tokenfield.models.weights import Head


class OffsetAttention(Attention):
    """Attention by e^{β⟨B_hᵀx, y⟩ + offset_h(y)}; a subclass says the offsets in its `output`."""

    beta: eqx.AbstractVar[Float[Array, ""]]

    @property
    def scale(self) -> Float[Array, ""]:
        """β."""
        return self.beta

    @property
    def heads(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """None: it is more than heads with a kernel."""
        return None

    @property
    def scored_heads(self) -> Head:
        """βB and V of the heads, without the offsets."""
        return super().heads

    @property
    def kernel(self) -> Kernel:
        """Softmax, of scores with the offsets of the keys."""
        return Softmax()
