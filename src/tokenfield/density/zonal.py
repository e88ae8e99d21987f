"""Laws that depend on the height ⟨x, e⟩ only, on the sphere of any R^d: one-dimensional cost.

With x = cos φ e + sin φ ω the law is one of φ in [0, π] and u = ⟨∂x/∂φ, X⟩ its velocity. Keys are averaged
over their direction ω across the axis once, when the matrices are made; for B = I the result is diagonal
in the zonal harmonics (Funk–Hecke), with the eigenvalues λ_l of theory §3.4. Two schemes:

- spectral: coefficients c_l = ∫p_l dμ of ρ = Σ c_l p_l in Gegenbauer polynomials, which obey
  dc_l/dt = ∫p_l' t' dμ − D l(l+d−2)c_l, t' = −sin φ u; the diffusion is implicit;
- characteristics: Gauss nodes in φ carried by u with their masses, log ρ by −div X. Never negative, and
  the only choice where ρ spans more digits than a double has: in high dimension nearly always.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar, Literal, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike
from scipy import special

from tokenfield.density.domain import Domain, Problem, Watch
from tokenfield.density.gegenbauer import gauss, harmonics
from tokenfield.density.march import adaptive, march
from tokenfield.density.result import DensityTrajectory
from tokenfield.density.start import start
from tokenfield.errors import as_number, as_whole, require
from tokenfield.models import InteractionFlow, Model, SoftmaxAttention, UnnormalisedAttention, ZeroTemperature
from tokenfield.record import describe
from tokenfield.tokens import Moments, Tokens, as_real

#: Share of the L² norm in the top third of the degrees, and depth of an undershoot relative to the greatest
#: density, from which a spectral run counts as under-resolved.
SPECTRAL_TAIL = 1e-6
#: Where nearly all is in the top third, steps in time would not help.
HOPELESS = 0.5
#: Directions across the axis over which pairs are averaged.
DIRECTIONS = 64
#: Numbers that `tokens` makes at most; more are refused.
MOST_NUMBERS = 50_000_000
#: Marginal densities below this times the greatest are left out of the interval of the nodes.
NEGLIGIBLE = 1e-17

Pair = tuple[Array, Array]
Scheme = Literal["auto", "spectral", "characteristics"]


class Zonal(Domain):
    """Laws of the height over the axis `axis` (d,) of norm 1; ρ0 is a function of heights in [−1, 1].

    `degree`: greatest degree of the polynomials, and number of nodes carried. `scheme`: "spectral",
    "characteristics", or "auto": spectral, and characteristics if that turns out under-resolved (not with
    noise, which has none). `tolerance`: error allowed in a time step.
    """

    axis: Float[np.ndarray, "d"] = eqx.field(converter=lambda v: _unit(v))
    degree: int = eqx.field(default=96, converter=lambda v: as_whole(v, "degree", 4))
    scheme: Scheme = "auto"
    tolerance: float = eqx.field(default=1e-10, converter=lambda v: as_number(v, "tolerance"))

    name: ClassVar[str] = "zonal"

    def __check_init__(self):
        known = self.scheme in ("auto", "spectral", "characteristics")
        require(known, "scheme", 'be "auto", "spectral" or "characteristics"', repr(self.scheme))
        require(1e-13 <= self.tolerance <= 1e-2, "tolerance", "lie in [1e-13, 1e-2]", self.tolerance)

    @classmethod
    def for_model(cls, model: Model) -> Self:
        """The first axis, degree 96."""
        return cls(np.eye(model.d)[0])

    @property
    def d(self) -> int:
        """Dimension of the surrounding space."""
        return len(self.axis)

    @property
    def moving(self) -> bool:
        """Whether the nodes differ from time to time."""
        return self.scheme == "characteristics"

    def run(self, problem: Problem, watch: Watch) -> DensityTrajectory:
        """Spectral or by characteristics."""
        model = problem.model
        require(model.d == self.d, "model", f"act in the dimension {self.d} of the axis", model.d)
        heads = zonal_heads(model, self.axis)
        noisy = problem.diffusion > 0
        require(not (noisy and self.scheme == "characteristics"), "scheme",
                'be "spectral" for a model with noise, which has no characteristics',
                self.scheme)  # fmt: skip
        if self.scheme == "characteristics":
            return self._characteristics(problem, heads, watch)
        result = self._spectral(problem, heads, watch, stop=self.scheme == "auto" and not noisy)
        if self.scheme == "spectral" or noisy or result.resolved:
            return replace(result, domain=replace(self, scheme="spectral"))
        return replace(self, scheme="characteristics")._characteristics(problem, heads, watch)

    def tokens(self, nodes: np.ndarray, masses: np.ndarray) -> Tokens:
        """Each height as the 2(d−1) points of a cross-polytope across the axis."""
        around = 2 * (self.d - 1)
        size = len(nodes) * around * self.d
        require(size <= MOST_NUMBERS, "d", "leave tokens that fit in memory (use .sample(n, key) instead)",
                f"{self.d}, which makes {size} numbers")  # fmt: skip
        across = np.linalg.svd(self.axis[None])[2][1:]
        cross = np.concatenate([across, -across])
        radius = np.sqrt(np.maximum(1 - nodes**2, 0.0))
        x = nodes[:, None, None] * self.axis + radius[:, None, None] * cross
        return Tokens(x.reshape(-1, self.d), np.repeat(masses / around, around))

    def moments(self, nodes: np.ndarray, masses: np.ndarray) -> Moments:
        """Along the axis, and equal in all directions across it."""
        along, across = masses @ nodes**2, masses @ (1 - nodes**2) / (self.d - 1)
        line = np.outer(self.axis, self.axis)
        second = along * line + across * (np.eye(self.d) - line)
        return Moments(jnp.asarray((masses @ nodes) * self.axis), jnp.asarray(second))

    def pairs(self, nodes: np.ndarray, masses: np.ndarray, f: Callable[[np.ndarray], np.ndarray]) -> float:
        """∬f(⟨x,y⟩)dμdμ, averaged over the directions across the axis: a cross-polytope is too coarse."""
        radius = np.sqrt(np.maximum(1 - nodes**2, 0.0))
        along, across = np.outer(nodes, nodes), np.outer(radius, radius)
        directions = zip(*gauss(self.d - 1, DIRECTIONS), strict=True)
        return float(
            sum(share * (masses @ f(along + across * omega) @ masses) for omega, share in directions)
        )

    def sample(self, nodes: np.ndarray, masses: np.ndarray, n: int, rng: np.random.Generator) -> Tokens:
        """An angle from the axis between the neighbours of a node, then a direction across the axis."""
        order = np.argsort(nodes)
        phi, share = np.arccos(np.clip(nodes[order], -1, 1)), masses[order]
        between = (phi[1:] + phi[:-1]) / 2
        first = min(2 * phi[0] - between[0], np.pi)
        last = max(2 * phi[-1] - between[-1], 0.0)
        edges = np.concatenate([[first], between, [last]])
        cell = rng.choice(len(phi), n, p=share)
        drawn = edges[cell] + rng.uniform(size=n) * (edges[cell + 1] - edges[cell])
        across = rng.normal(size=(n, self.d))
        across -= np.outer(across @ self.axis, self.axis)
        across /= np.linalg.norm(across, axis=1, keepdims=True)
        return Tokens(np.cos(drawn)[:, None] * self.axis + np.sin(drawn)[:, None] * across)

    # -- spectral

    def _spectral(self, problem: Problem, heads: "Heads", watch: Watch, stop: bool) -> DensityTrajectory:
        t, w = gauss(self.d, 3 * self.degree // 2 + 1)
        p, _ = harmonics(self.d, self.degree, t)
        rho = start(problem.rho0, t, w)
        y0 = p.T @ (w * rho)
        decay = None
        if problem.diffusion > 0:
            l = np.arange(self.degree + 1)  # noqa: E741
            decay = jnp.asarray(problem.diffusion * l * (l + self.d - 2))
        field = spectral_field(heads, self.d, self.degree)
        limit = SPECTRAL_TAIL if stop else HOPELESS
        healthy = lambda y: bool(self._tail(y[None], p)[0][0] <= limit)  # noqa: E731
        marched = march(adaptive(field, self.tolerance, decay), jnp.asarray(y0), problem.ts, watch, healthy)
        tail, density = self._tail(marched.y, p)
        late = np.flatnonzero(tail > SPECTRAL_TAIL)
        status = marched.status
        if late.size:
            status += (
                f"; under-resolved from t = {problem.ts[late[0]]:.4g}: the highest degrees up to"
                f" {self.degree} carry up to {tail.max():.1e} of the density (allowed {SPECTRAL_TAIL:g})"
            )
        return self._result(
            problem, t, density, density * w, tail, marched.stats, status, marched.complete, not late.size
        )

    def _tail(self, y: np.ndarray, p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What the degrees may have missed at each time, and the density at the nodes."""
        density = y @ p.T
        top = np.linalg.norm(y[:, 2 * self.degree // 3 :], axis=1) / np.linalg.norm(y, axis=1)
        undershoot = np.maximum(-density.min(axis=1), 0.0) / density.max(axis=1)
        return np.maximum(top, undershoot), density

    # -- characteristics

    def _characteristics(self, problem: Problem, heads: "Heads", watch: Watch) -> DensityTrajectory:
        labels, phi, masses, log_rho = self._nodes(problem.rho0)
        carried = Carried(Between.of(heads, self.d), jnp.asarray(masses), self.d)
        y0 = jnp.stack([jnp.asarray(phi), jnp.asarray(log_rho)])
        marched = march(adaptive(carried, self.tolerance), y0, problem.ts, watch)
        angle, logs = marched.y[:, 0], marched.y[:, 1]
        tail = self._node_tail(angle, masses, labels, heads.sharpness)
        late = np.flatnonzero(tail > SPECTRAL_TAIL)
        status = marched.status
        if late.size:
            status += (
                f"; under-resolved from t = {problem.ts[late[0]]:.4g}: what {self.degree} nodes do not see"
                f" may be {tail.max():.1e} of an integral (allowed {SPECTRAL_TAIL:g})"
            )
        with np.errstate(over="ignore"):  # relative to the uniform law no double may hold it
            density = np.exp(logs)
        shares = np.broadcast_to(masses, density.shape)
        return self._result(
            problem,
            np.cos(angle),
            density,
            shares,
            tail,
            marched.stats,
            status,
            marched.complete,
            not late.size,
        )

    def _node_tail(
        self, angle: np.ndarray, masses: np.ndarray, labels: np.ndarray, sharpness: float
    ) -> np.ndarray:
        """Top third of the Legendre series, in the label of the nodes, of functions as sharp as the kernel.

        A flow that draws neighbouring nodes far apart makes the integrand steep in the label.
        """
        p, _ = harmonics(3, self.degree - 1, labels)
        both = np.stack([np.cos(sharpness * angle), np.sin(sharpness * angle)]) * masses
        size = np.abs(both @ p)
        top = np.linalg.norm(size[..., 2 * self.degree // 3 :], axis=-1)
        return np.max(top, axis=0) / np.max(np.linalg.norm(size, axis=-1), axis=0)

    def _nodes(
        self, rho0: Callable[[np.ndarray], ArrayLike]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Labels, angles, masses and log ρ at Gauss–Legendre nodes of the interval that holds the mass."""
        fine = (np.arange(20_000) + 0.5) * (np.pi / 20_000)
        # one kind of check for all domains; what it scales by is not needed here
        values = start(rho0, np.cos(fine), np.full(len(fine), 1 / len(fine)))
        with np.errstate(divide="ignore"):
            marginal = np.log(values) + (self.d - 2) * np.log(np.sin(fine))
        inside = np.flatnonzero(marginal > marginal.max() + np.log(NEGLIGIBLE))
        low, high = fine[inside[0]] - fine[0], fine[inside[-1]] + fine[0]
        z, weights = np.polynomial.legendre.leggauss(self.degree)
        phi = (low + high) / 2 + (high - low) / 2 * z
        values = np.asarray(rho0(np.cos(phi)), float) * np.ones(self.degree)
        kept = values > 0
        z, phi, weights, values = z[kept], phi[kept], weights[kept], values[kept]
        log_share = np.log(values) + (self.d - 2) * np.log(np.sin(phi)) + np.log(weights)
        log_total = special.logsumexp(log_share)
        # ∫ sin^{d−2} over [0, π] is what the uniform law divides by
        log_area = special.gammaln((self.d - 1) / 2) - special.gammaln(self.d / 2) + 0.5 * np.log(np.pi)
        log_mass = log_total + np.log((high - low) / 2) - log_area
        return z, phi, np.exp(log_share - log_total), np.log(values) - log_mass

    def _result(
        self,
        problem: Problem,
        nodes: np.ndarray,
        density: np.ndarray,
        masses: np.ndarray,
        tail: np.ndarray,
        stats: dict,
        status: str,
        complete: bool,
        resolved: bool,
    ) -> DensityTrajectory:
        return DensityTrajectory(
            ts=problem.ts[: len(density)],
            nodes=nodes,
            density=density,
            masses=masses,
            tail=tail,
            domain=self,
            stats=stats,
            inputs=describe(model=problem.model, diffusion=problem.diffusion, domain=self, ts=problem.ts),
            status=status,
            complete=complete,
            resolved=resolved,
        )


def _unit(axis: ArrayLike) -> np.ndarray:
    array = np.asarray(as_real(axis, "axis"))
    require(
        array.ndim == 1 and array.size >= 2, "axis", "be a vector of length d ≥ 2", f"of shape {array.shape}"
    )
    norm = float(np.linalg.norm(array))
    require(abs(norm - 1) <= 1e-6, "axis", "have norm 1", f"of norm {norm:.9g}")
    return array / norm


# ---- models that keep the symmetry ----


class Heads(NamedTuple):
    """The model in numbers: each head's score a tt' + b ss'ω, and V = (along, across).

    `weight(score, top)`: what a score counts, `top` the bound of the scores of the query; `normalised`:
    whether readings are divided by the sum of the weights; `sharpness`: 1/width of the kernel.
    """

    score: Float[np.ndarray, "heads 2"]
    value: Float[np.ndarray, "heads 2"]
    weight: Callable[[Array, Array], Array]
    normalised: bool
    sharpness: float


def zonal_heads(model: Model, axis: np.ndarray) -> Heads:
    """The heads of a model whose matrices are a eeᵀ + b(I − eeᵀ); others are refused with a sentence."""
    if isinstance(model, InteractionFlow):
        A = _both(np.asarray(model.A), axis, "A")
        slope = jax.grad(lambda s: jnp.asarray(model.phi(s), float))
        return Heads(A, A, Slope(slope), normalised=False, sharpness=4.0)
    infinite = getattr(model, "infinite", False)
    kind = type(model).__name__ + " at beta = inf" * infinite
    known = isinstance(model, SoftmaxAttention | UnnormalisedAttention | ZeroTemperature) and not infinite
    require(known, "model", "be softmax or unnormalised attention at finite beta, an interaction flow or the"
            " zero-temperature flow", kind)  # fmt: skip
    assert isinstance(model, SoftmaxAttention | UnnormalisedAttention | ZeroTemperature)
    B, V = (_both(np.asarray(m), axis, name) for m, name in zip(model.weights.stacked(), "BV", strict=True))
    if isinstance(model, ZeroTemperature):
        return Heads(B, V, Nearest(), normalised=False, sharpness=1.0)
    score = float(model.beta) * B
    sharpness = np.sqrt(1 + np.abs(score).max())
    if isinstance(model, SoftmaxAttention):
        return Heads(score, V, Exponential(None), normalised=True, sharpness=sharpness)
    return Heads(score, V, Exponential(float(model.log_time_unit)), normalised=False, sharpness=sharpness)


class Exponential(eqx.Module):
    """e^{score − top}, or e^{score − unit} where readings are not normalised."""

    unit: float | None

    def __call__(self, score: Array, top: Array) -> Array:
        """The weight of a score."""
        return jnp.exp(score - (top if self.unit is None else self.unit))


class Slope(eqx.Module):
    """φ'(score)."""

    slope: Callable[[Array], Array] = eqx.field(static=True)

    def __call__(self, score: Array, top: Array) -> Array:
        """The weight of a score."""
        return jax.vmap(self.slope)(score.ravel()).reshape(score.shape)


class Nearest(eqx.Module):
    """The zero-temperature flow reads the direction of the query itself, whatever the keys."""

    def __call__(self, score: Array, top: Array) -> Array:
        """Never asked: see `Between`."""
        raise NotImplementedError


def _both(matrices: np.ndarray, axis: np.ndarray, name: str) -> np.ndarray:
    """The two eigenvalues (heads, 2) of matrices a eeᵀ + b(I − eeᵀ)."""
    d = len(axis)
    matrices = matrices.reshape(-1, d, d)
    a = np.einsum("i,hij,j->h", axis, matrices, axis)
    b = (np.trace(matrices, axis1=1, axis2=2) - a) / (d - 1)
    line = np.outer(axis, axis)
    expected = a[:, None, None] * line + b[:, None, None] * (np.eye(d) - line)
    off = float(np.abs(matrices - expected).max())
    require(off <= 1e-12 * np.abs(matrices).max(), name,
            "keep the symmetry about the axis, a·eeᵀ + b·(I − eeᵀ)", f"off by {off:.3g}")  # fmt: skip
    return np.stack([a, b], axis=1)


# ---- what a height reads ----


class Between(eqx.Module):
    """What keys at the angles φ' pull at a query at φ, averaged over the directions across the axis."""

    score: Float[Array, "heads 2"]
    value: Float[Array, "heads 2"]
    weight: Callable[[Array, Array], Array]
    omega: Float[Array, "W"]
    share: Float[Array, "W"]
    normalised: bool = eqx.field(static=True)

    @classmethod
    def of(cls, heads: Heads, d: int) -> "Between":
        """With as many directions as the kernel needs."""
        strongest = float(np.abs(heads.score[:, 1]).max()) / np.sqrt(d)
        count = 16 + int(6 * np.sqrt(strongest)) + int(min(strongest, 60.0)) if d > 2 else 2
        omega, share = gauss(d - 1, count)
        score, value = jnp.asarray(heads.score), jnp.asarray(heads.value)
        return cls(score, value, heads.weight, jnp.asarray(omega), jnp.asarray(share), heads.normalised)

    def matrices(self, phi: Float[Array, "m"], keys: Float[Array, "n"]) -> tuple[Array, Array]:
        """Pull and weight (heads, m, n) of keys on queries."""
        c, s, C, S = jnp.cos(phi), jnp.sin(phi), jnp.cos(keys), jnp.sin(keys)

        def head(score: Array, value: Array) -> tuple[Array, Array]:
            along, across = score
            top = jnp.hypot(along * c, across * s)[:, None]
            if isinstance(self.weight, Nearest):
                pull = (-value[0] * along * s * c + value[1] * across * s * c)[:, None] / top
                return pull * jnp.ones_like(C), jnp.ones((len(c), len(C)))

            def one(
                total: tuple[Array, Array], direction: tuple[Array, Array]
            ) -> tuple[tuple[Array, Array], None]:
                omega, share = direction
                level = along * c[:, None] * C + across * s[:, None] * S * omega
                w = share * self.weight(level, top)
                pull = w * (-value[0] * s[:, None] * C + value[1] * c[:, None] * S * omega)
                return (total[0] + pull, total[1] + w), None

            zero = jnp.zeros((len(c), len(C)))
            return jax.lax.scan(one, (zero, zero), (self.omega, self.share))[0]

        return jax.lax.map(lambda pair: head(*pair), (self.score, self.value))

    def velocity(self, phi: Array, keys: Array, masses: Array) -> Array:
        """u at φ for masses at the angles `keys`."""
        pull, weight = self.matrices(phi, keys)
        read = pull @ masses
        return jnp.sum(read / (weight @ masses) if self.normalised else read, axis=0)


class Spectral(eqx.Module):
    """dc_l/dt without diffusion; matrices from coefficients to nodes and back."""

    pull: Float[Array, "heads Q L"]
    weight: Float[Array, "heads Q L"] | None
    density: Float[Array, "Q L"]
    back: Float[Array, "L Q"]

    def __call__(self, c: Float[Array, "L"]) -> Float[Array, "L"]:
        """The change of the coefficients."""
        read = self.pull @ c
        if self.weight is not None:
            total = self.weight @ c
            read = read / jnp.maximum(total, jnp.abs(read))  # a mean of keys is no longer than 1
        return self.back @ (jnp.sum(read, axis=0) * (self.density @ c))


def spectral_field(heads: Heads, d: int, degree: int) -> Spectral:
    """The right-hand side in coefficients."""
    t, w = gauss(d, 3 * degree // 2 + 1)
    w = np.where(w < 1e-150, 0.0, w)  # no share of any integral, but slow: products would be subnormal
    p, dp = harmonics(d, degree, t)
    phi = jnp.asarray(np.arccos(t))
    pull, weight = eqx.filter_jit(Between.matrices)(Between.of(heads, d), phi, phi)
    from_coefficients = jnp.asarray(w[:, None] * p)
    back = (dp * (-np.sqrt(1 - t**2) * w)[:, None]).T
    kept = weight @ from_coefficients if heads.normalised else None
    return Spectral(pull @ from_coefficients, kept, jnp.asarray(p), jnp.asarray(back))


class Carried(eqx.Module):
    """Nodes (φ, log ρ) and their change (u, −div X), div X = u' + (d−2)cot φ u."""

    between: Between
    masses: Float[Array, "n"]
    d: int = eqx.field(static=True)

    def __call__(self, y: Float[Array, "2 n"]) -> Float[Array, "2 n"]:
        """Velocity of every node and of its log ρ."""
        phi = y[0]
        u, slope = jax.jvp(
            lambda q: self.between.velocity(q, phi, self.masses), (phi,), (jnp.ones_like(phi),)
        )
        return jnp.stack([u, -(slope + (self.d - 2) * u / jnp.tan(phi))])
