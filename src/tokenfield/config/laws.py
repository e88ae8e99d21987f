"""Laws of [initial] that need more than a plain call: coefficients of a density, other laws, the tokens.

Each is a class of settings with a method `build`, registered like the plain functions of laws/initial.py.
"""

from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from tokenfield.config.choices import Choice, RegisteredSection
from tokenfield.config.matrices import Matrix
from tokenfield.config.section import Section
from tokenfield.errors import InputError, require
from tokenfield.geometry.circle import points
from tokenfield.laws import initial
from tokenfield.laws.tokens import Tokens
from tokenfield.registry import register

InitialSettings = Annotated[RegisteredSection, Choice("law")]


@register("law", "atoms", size=lambda settings: len(settings.x))
class Atoms(Section):
    """The tokens themselves."""

    x: list[list[float]]
    weights: list[float] | None = None

    def build(self) -> Tokens:
        """The tokens."""
        return Tokens(self.x, self.weights)


class CircleLaw(Section):
    """The density 1 + Σ_k cos[k]cos((k+1)θ) + sin[k]sin((k+1)θ)."""

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


@register("law", "circle_density", exact_n=True)
class CircleDensity(CircleLaw):
    """A trigonometric density on the circle as n equispaced tokens; with a key, as n independent ones."""

    n: int
    key: int | None = None

    def build(self) -> Tokens:
        """The tokens."""
        if self.key is not None:
            return initial.sampled(self.of_points, self.n, 2, self.key, self.most)
        return initial.circle_density(self.of_angles, self.n)


class SphereLaw(Section):
    """The density 1 + ⟨linear, x⟩ + xᵀ quadratic x."""

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


@register("law", "sphere_density", exact_n="keyed")
class SphereDensity(SphereLaw):
    """A quadratic density on the sphere as about n quadrature tokens; with a key, as n independent ones."""

    n: int
    key: int | None = None

    def build(self) -> Tokens:
        """The tokens."""
        if self.key is not None:
            return initial.sampled(self.of_points, self.n, self.d, self.key, self.most)
        return initial.sphere_density(self.of_points, self.n, self.d)


@register("law", "graded", size=lambda settings: settings.size)
class GradedDensity(SphereLaw):
    """A quadratic density on the circle or S² as quadrature tokens, crowded towards a hyperplane or points.

    `towards`: the normal of a hyperplane, or a list of one point or of two opposite ones.
    """

    n: int
    towards: list[float] | list[list[float]]
    grading: float | None = None

    @property
    def size(self) -> int:
        """How many tokens there will be."""
        around = int(np.sqrt(2 * max(self.n, 1)))
        return self.n if self.d == 2 else around * (self.n // around)

    def build(self) -> Tokens:
        """The tokens."""
        held = np.shape(self.towards)[-1:]
        require(held == (self.d,), "initial.towards", f"have the dimension d = {self.d}", self.towards)
        return initial.graded(self.of_points, self.n, self.towards, self.grading)


@register("law", "mixture", size=lambda settings: sum(part.size or 0 for part in settings.parts))
class Mixture(Section):
    """Other laws with the given masses."""

    parts: list[InitialSettings]
    masses: list[float]

    def build(self) -> Tokens:
        """The tokens."""
        return initial.mixture([part.build() for part in self.parts], self.masses)
