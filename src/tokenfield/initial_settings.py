"""The [initial] section of a run's configuration: a law by its name, and the tokens that stand for it.

A new law adds one class here and its name to a union.
"""

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from tokenfield import initial
from tokenfield.density.circle_reading import points
from tokenfield.errors import InputError
from tokenfield.settings import Built, Matrix, Section
from tokenfield.tokens import Tokens


class Uniform(Built):
    """[initial] law = "uniform"."""

    makes = initial.uniform
    law: Literal["uniform"]
    n: int
    d: int
    key: int


class VonMisesFisher(Built):
    """[initial] law = "von_mises_fisher"."""

    makes = initial.von_mises_fisher
    law: Literal["von_mises_fisher"]
    n: int
    mean: list[float]
    kappa: float
    key: int


class Cap(Built):
    """[initial] law = "cap"."""

    makes = initial.cap
    law: Literal["cap"]
    n: int
    centre: list[float]
    angle: float
    key: int


class Poisson(Built):
    """[initial] law = "poisson"; quadrature tokens unless a key is given."""

    makes = initial.poisson
    law: Literal["poisson"]
    n: int
    w: list[float]
    key: int | None = None


class Equiangular(Built):
    """[initial] law = "equiangular"."""

    makes = initial.equiangular
    law: Literal["equiangular"]
    n: int
    d: int
    rho: float


class Atoms(Built):
    """[initial] law = "atoms": the tokens themselves."""

    makes = Tokens
    law: Literal["atoms"]
    x: list[list[float]]
    weights: list[float] | None = None


class CircleLaw(Section):
    """law = "circle_density": 1 + Σ_k cos[k]cos((k+1)θ) + sin[k]sin((k+1)θ)."""

    law: Literal["circle_density"]
    d: ClassVar[int] = 2
    cos: list[float] = Field([])
    sin: list[float] = Field([])

    def of_angles(self, theta: np.ndarray) -> np.ndarray:
        """The density at angles."""
        total = np.ones_like(theta)
        for k, a in enumerate(self.cos, 1):
            total += a * np.cos(k * theta)
        for k, b in enumerate(self.sin, 1):
            total += b * np.sin(k * theta)
        return total

    @property
    def most(self) -> float:
        """A bound of the density."""
        return 1 + float(np.sum(np.abs(self.cos)) + np.sum(np.abs(self.sin)))

    def of_points(self, x: np.ndarray) -> np.ndarray:
        """The density at points (m, 2)."""
        return self.of_angles(np.arctan2(x[:, 1], x[:, 0]))


class CircleDensity(CircleLaw):
    """[initial] the law "circle_density" as n equispaced tokens; with a key, as n independent ones."""

    n: int
    key: int | None = None

    def build(self) -> Tokens:
        """The tokens."""
        if self.key is not None:
            return initial.sampled(self.of_points, self.n, 2, self.key, self.most)
        return initial.circle_density(self.of_angles, self.n)


class SphereLaw(Section):
    """law = "sphere_density": 1 + ⟨linear, x⟩ + xᵀ quadratic x."""

    law: Literal["sphere_density"]
    d: int = 3
    linear: list[float] | None = None
    quadratic: Matrix | None = None

    def of_angles(self, theta: np.ndarray) -> np.ndarray:
        """The density at angles, d = 2."""
        return self.of_points(points(theta))

    def of_points(self, x: np.ndarray) -> np.ndarray:
        """The density at points (m, d)."""
        linear, quadratic = self._terms()
        return 1 + x @ linear + np.sum(x @ quadratic * x, axis=1)

    @property
    def most(self) -> float:
        """A bound of the density."""
        linear, quadratic = self._terms()
        return 1 + float(np.linalg.norm(linear) + np.linalg.norm(quadratic, 2))

    def _terms(self) -> tuple[np.ndarray, np.ndarray]:
        linear = np.zeros(self.d) if self.linear is None else np.array(self.linear)
        quadratic = np.zeros((self.d, self.d)) if self.quadratic is None else np.array(self.quadratic.build())
        if linear.shape != (self.d,) or quadratic.shape != (self.d, self.d):
            raise InputError(f"`initial.linear` and `initial.quadratic` must have the dimension d = {self.d}")
        return linear, quadratic


class SphereDensity(SphereLaw):
    """[initial] the law "sphere_density" as about n quadrature tokens; with a key, as n independent ones."""

    n: int
    key: int | None = None

    def build(self) -> Tokens:
        """The tokens."""
        if self.key is not None:
            return initial.sampled(self.of_points, self.n, self.d, self.key, self.most)
        return initial.sphere_density(self.of_points, self.n, self.d)


Simple = Uniform | VonMisesFisher | Cap | Poisson | Equiangular | Atoms | CircleDensity | SphereDensity


class Mixture(Section):
    """[initial] law = "mixture" of other laws with the given masses."""

    law: Literal["mixture"]
    parts: list[Annotated[Simple, Field(discriminator="law")]]
    masses: list[float]

    def build(self) -> Tokens:
        """The tokens."""
        return initial.mixture([part.build() for part in self.parts], self.masses)


InitialSettings = Annotated[Simple | Mixture, Field(discriminator="law")]
