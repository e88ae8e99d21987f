"""The sections of a mean-field run's configuration that a run of tokens does not have.

[density], the domain with its resolution; [initial], a law as a density; [run], what to keep. A law gives its
density as a function of the places of some domains: `of_angles`, `of_points` (m, d) or `of_heights`; a domain
declares which of them it takes.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field, model_validator

from tokenfield.config.choices import Choice, Name, RegisteredSection
from tokenfield.config.laws import CircleLaw, SphereLaw
from tokenfield.config.section import Section
from tokenfield.errors import require
from tokenfield.geometry.circle import points
from tokenfield.registry import Entry, entries, register

Density = Callable[..., np.ndarray]
InitialDensity = Annotated[RegisteredSection, Choice("density")]
DensityDomain = Annotated[RegisteredSection, Choice("domain")]


@register("density", "uniform")
class UniformDensity(Section):
    """The uniform law."""

    d: ClassVar[None] = None

    def of_points(self, x: np.ndarray, axis: np.ndarray | None = None) -> np.ndarray:
        """1 everywhere."""
        return np.ones(len(x))

    of_angles = of_heights = of_points


register("density", "circle_density")(CircleLaw)
register("density", "sphere_density")(SphereLaw)


@register("density", "poisson")
class PoissonDensity(Section):
    """The density ((1−|w|²)/|x−w|²)^{d−1}, see `initial.poisson`."""

    w: Annotated[list[float], Field(min_length=2)]

    @model_validator(mode="after")
    def _inside(self) -> "PoissonDensity":
        radius = float(np.linalg.norm(self.w))
        if not radius < 1:
            raise ValueError(f"hold a w inside the unit ball, but holds one of norm {radius:.9g}")
        return self

    @property
    def d(self) -> int:
        """Dimension of the tokens."""
        return len(self.w)

    def of_points(self, x: np.ndarray) -> np.ndarray:
        """The density."""
        return self._of_products(x @ np.array(self.w))

    def of_angles(self, theta: np.ndarray) -> np.ndarray:
        """The density."""
        return self.of_points(points(theta))

    def of_heights(self, height: np.ndarray, axis: np.ndarray) -> np.ndarray:
        """The density, if w is on the axis."""
        along = float(axis @ self.w)
        off = float(np.linalg.norm(self.w - along * axis))
        require(off <= 1e-12, "initial.w", "be on the axis of the zonal domain", f"{off:.3g} away from it")
        return self._of_products(along * height)

    def _of_products(self, s: np.ndarray) -> np.ndarray:
        """At points x with ⟨x, w⟩ = s."""
        square = float(np.dot(self.w, self.w))
        return ((1 - square) / (1 - 2 * s + square)) ** (self.d - 1)


@register("density", "zonal_density")
class ZonalDensity(Section):
    """The density 1 + Σ_k coefficients[k]h^{k+1} of the height h over the axis of the domain."""

    coefficients: list[float] = Field(default=[])
    d: ClassVar[None] = None

    def of_heights(self, height: np.ndarray, axis: np.ndarray) -> np.ndarray:
        """The density."""
        return np.polynomial.polynomial.polyval(height, [1.0, *self.coefficients])


def density_on(domain: RegisteredSection, law: RegisteredSection) -> Density:
    """The law as a function of the places of a domain; refused if it is no density there."""
    places = domain.entry.facts["places"]
    known = [name for name, each in entries("density").items() if hasattr(each.make, places)]
    require(
        law.entry.name in known,
        "initial.law",
        f"be one of {', '.join(known)} on the domain {domain.entry.name!r}",
        repr(law.entry.name),
    )
    density = getattr(law, places)
    return partial(density, axis=domain.build().axis) if places == "of_heights" else density


def _of_densities(entry: Entry) -> bool:
    return entry.facts["of"] in ("law", "density run")


class DensityRunSettings(Section):
    """[run]: what to measure at every time, and the times of which the density is kept."""

    measure: list[Annotated[str, Name("measure", _of_densities)]] = Field(default=["order_parameter"])
    snapshots: list[int] = Field(default=[])
