"""One layer of a trained encoder: what it does, and its folded form on the sphere (theory §7.1).

A Post-LN layer is x ← N₂(a + MLP(a)), a = N₁(x + attention(x)). Its input is x = rGu + b, (G, b) of the
LayerNorm that made x, u a unit vector orthogonal to 1. Then, with C = I − 11ᵀ/d and g = rms(G),

    B_h = C G Q_hᵀK_h G C,   β = d/√k,   c_h = C G K_hᵀ(Q_h b + q_h)/r,   scores β⟨B_hᵀu + c_h, u_j⟩,
    V_h = C O_hV_hG C/g,   drift a = C(Σ_h O_h(V_h b + v_h) + o)/(rg).

Attention from this form is exact; the sphere form u ← N(u + ΣV_hŷ_h + a) takes gI for G in the residual.
"""

from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from tokenfield.encoders.layer_norm import LayerNorm, centred
from tokenfield.models.attention import SoftmaxAttention
from tokenfield.models.base import Model
from tokenfield.models.terms import ACTIVATIONS, Drift
from tokenfield.models.weights import AttentionWeights

Rule = Literal["softmax", "hardmax", "zero temperature", "average"]


class SelfAttention(eqx.Module):
    """Heads as they were trained: Q, K, V (heads, k, d), O (heads, d, k), and the biases q, p, v, o.

    Scores are ⟨Qx + q, Ky + p⟩·scale; `rule` says what they weigh.
    """

    Q: Float[Array, "heads k d"]
    K: Float[Array, "heads k d"]
    V: Float[Array, "heads k d"]
    O: Float[Array, "heads d k"]  # noqa: E741 - the output projection is O everywhere
    q: Float[Array, "heads k"]
    p: Float[Array, "heads k"]
    v: Float[Array, "heads k"]
    o: Float[Array, "d"]
    scale: float = eqx.field(static=True)
    rule: Rule = eqx.field(static=True, default="softmax")

    def pattern(self, x: Float[Array, "n d"]) -> Float[Array, "heads n n"]:
        """Weight of every key for every query in every head."""
        queries = jnp.einsum("hkd,nd->hnk", self.Q, x) + self.q[:, None]
        keys = jnp.einsum("hkd,nd->hnk", self.K, x) + self.p[:, None]
        scores = self.scale * jnp.einsum("hnk,hmk->hnm", queries, keys)
        if self.rule == "average":
            scores = jnp.zeros_like(scores)
        if self.rule == "hardmax":
            top = scores == jnp.max(scores, axis=-1, keepdims=True)
            return top / jnp.sum(top, axis=-1, keepdims=True)
        return jax.nn.softmax(scores, axis=-1)

    def read(self, x: Float[Array, "n d"], source: LayerNorm) -> Float[Array, "heads n d"]:
        """What every head reads at every token, before V; `source` is the norm that made x."""
        if self.rule == "zero temperature":
            wanted = jnp.einsum(
                "hkd,hnk->hnd", self.K, jnp.einsum("hkd,nd->hnk", self.Q, x) + self.q[:, None]
            )
            toward = centred(source.gain * wanted)
            return source.unfold(toward / jnp.linalg.norm(toward, axis=-1, keepdims=True))
        return jnp.einsum("hnm,md->hnd", self.pattern(x), x)

    def __call__(self, x: Float[Array, "n d"], source: LayerNorm) -> Float[Array, "n d"]:
        """Σ_h O_h(V_hȳ_h + v_h) + o."""
        values = jnp.einsum("hkd,hnd->hnk", self.V, self.read(x, source)) + self.v[:, None]
        return jnp.einsum("hdk,hnk->nd", self.O, values) + self.o


class FeedForward(eqx.Module):
    """W2 σ(W1 x + b1) + b2."""

    W1: Float[Array, "k d"]
    b1: Float[Array, "k"]
    W2: Float[Array, "d k"]
    b2: Float[Array, "d"]
    activation: str = eqx.field(static=True)

    def __call__(self, x: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """The same for every token."""
        return ACTIVATIONS[self.activation](x @ self.W1.T + self.b1) @ self.W2.T + self.b2


class Factors(NamedTuple):
    """Folded heads of low rank: B_h = left_hᵀright_h, V_h = up_h down_h; k × k products hold the spectra."""

    left: Float[Array, "heads k d"]
    right: Float[Array, "heads k d"]
    up: Float[Array, "heads d k"]
    down: Float[Array, "heads k d"]


class EncoderLayer(eqx.Module):
    """One Post-LN layer. `source`: the LayerNorm that made its input; `mlp` None: left out."""

    attention: SelfAttention
    mlp: FeedForward | None
    norm1: LayerNorm
    norm2: LayerNorm
    source: LayerNorm

    @property
    def d(self) -> int:
        """Dimension of the tokens."""
        return self.norm1.gain.shape[0]

    def block(self, x: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """The layer itself: tokens (n, d) to tokens."""
        return self.after_attention(x, self.attention(x, self.source))

    def after_attention(self, x: Float[Array, "*n d"], output: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        """What becomes of tokens x to which attention gives this output."""
        a = self.norm1(x + output)
        return self.norm2(a if self.mlp is None else a + self.mlp(a))

    @property
    def beta(self) -> float:
        """β = d·scale, d/√k for heads as they were trained."""
        return self.d * self.attention.scale

    @property
    def gain(self) -> Float[Array, "d"]:
        """G of the norm that made the input."""
        return self.source.gain

    @property
    def factors(self) -> Factors:
        """B and V of the sphere form, as factors."""
        G, heads = self.gain, self.attention
        left, right = centred(heads.Q * G), centred(heads.K * G)
        up = heads.O - jnp.mean(heads.O, axis=1, keepdims=True)
        return Factors(left, right, up / self.source.flat_gain, centred(heads.V * G))

    @property
    def score_bias(self) -> Float[Array, "heads d"]:
        """c_h: what the biases of norm and queries add to B_hᵀu; biases of keys drop out."""
        heads, norm = self.attention, self.source
        asked = heads.Q @ norm.bias + heads.q
        return centred(norm.gain * jnp.einsum("hkd,hk->hd", heads.K, asked)) / norm.radius

    @property
    def drift(self) -> Float[Array, "d"]:
        """a of the sphere form: what the biases of norm, values and output put out."""
        heads, norm = self.attention, self.source
        constant = jnp.einsum("hdk,hk->d", heads.O, heads.V @ norm.bias + heads.v) + heads.o
        return centred(constant) / (norm.radius * norm.flat_gain)

    @property
    def weights(self) -> AttentionWeights:
        """B, V and score biases of the sphere form, as d × d matrices."""
        left, right, up, down = self.factors
        return AttentionWeights(jnp.swapaxes(left, 1, 2) @ right, up @ down, self.score_bias)

    def model(self) -> Model:
        """The sphere form as a model of the core: attention and drift; `Layers(1.0)` takes one layer."""
        return SoftmaxAttention(self.weights, self.beta) + Drift(self.drift)

    def fold(self, x: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """u of the layer's input."""
        return self.source.fold(x)

    def unfold(self, u: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """The layer's input of u."""
        return self.source.unfold(u)
