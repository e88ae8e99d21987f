"""The sections of a mean-field run's configuration that a run of tokens does not have.

[density], the domain with its resolution; [initial], a law as a density; [run], what to keep. A law gives its
density as a function of the places of some domains: of angles, of points (m, d) or of heights. A new domain
or law adds one class here and its name to a union.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, ClassVar, Literal, get_args

import numpy as np
from pydantic import Field, model_validator

from tokenfield.density.characteristics import Characteristics
from tokenfield.density.circle import Circle
from tokenfield.density.circle import Scheme as CircleScheme
from tokenfield.density.circle_reading import points
from tokenfield.density.sphere import Sphere
from tokenfield.density.zonal import Scheme as ZonalScheme
from tokenfield.density.zonal import Zonal
from tokenfield.errors import require
from tokenfield.initial_settings import CircleLaw, SphereLaw
from tokenfield.settings import Built, Section

Density = Callable[..., np.ndarray]


class UniformDensity(Section):
    """[initial] law = "uniform"."""

    law: Literal["uniform"]
    d: ClassVar[None] = None

    def of_points(self, x: np.ndarray, axis: np.ndarray | None = None) -> np.ndarray:
        """1 everywhere."""
        return np.ones(len(x))

    of_angles = of_heights = of_points


class PoissonDensity(Section):
    """[initial] law = "poisson": ((1−|w|²)/|x−w|²)^{d−1}, see `initial.poisson`."""

    law: Literal["poisson"]
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


class ZonalDensity(Section):
    """[initial] law = "zonal_density": 1 + Σ_k coefficients[k]h^{k+1}, h over the axis of the domain."""

    law: Literal["zonal_density"]
    coefficients: list[float] = Field(default=[])
    d: ClassVar[None] = None

    def of_heights(self, height: np.ndarray, axis: np.ndarray) -> np.ndarray:
        """The density."""
        return np.polynomial.polynomial.polyval(height, [1.0, *self.coefficients])


Law = UniformDensity | CircleLaw | SphereLaw | PoissonDensity | ZonalDensity
InitialDensity = Annotated[Law, Field(discriminator="law")]


class DomainSettings(Built):
    """[density]; `places`: which function of a law is a density there; `nodes`: about how many there are."""

    places: ClassVar[str] = "of_points"
    domain: str

    @property
    def nodes(self) -> int:
        """About how many nodes a snapshot has."""
        raise NotImplementedError

    def density_of(self, law: Law) -> Density:
        """The law as a function of the places of this domain."""
        known = [c for c in get_args(Law) if hasattr(c, self.places)]
        names = ", ".join(get_args(c.model_fields["law"].annotation)[0] for c in known)
        require(type(law) in known, "initial.law", f"be one of {names} on the domain {self.domain!r}",
                repr(law.law))  # fmt: skip
        return getattr(law, self.places)


class CircleDomain(DomainSettings):
    """[density] domain = "circle"."""

    makes = Circle
    places = "of_angles"
    domain: Literal["circle"]
    modes: int = Circle.modes
    scheme: CircleScheme = "auto"
    tolerance: float = Circle.tolerance

    @property
    def nodes(self) -> int:
        """The modes."""
        return self.modes


class SphereDomain(DomainSettings):
    """[density] domain = "sphere"."""

    makes = Sphere
    domain: Literal["sphere"]
    degree: int = Sphere.degree
    tolerance: float = Sphere.tolerance
    accuracy: float = Sphere.accuracy
    filtered: bool = True

    @property
    def nodes(self) -> int:
        """3/2 of the degree in one direction, twice that in the other."""
        return 9 * (self.degree + 1) ** 2 // 2


class ZonalDomain(DomainSettings):
    """[density] domain = "zonal"."""

    makes = Zonal
    places = "of_heights"
    domain: Literal["zonal"]
    axis: list[float]
    degree: int = Zonal.degree
    scheme: ZonalScheme = "auto"
    tolerance: float = Zonal.tolerance

    @property
    def nodes(self) -> int:
        """3/2 of the degree."""
        return 3 * self.degree // 2 + 1

    def density_of(self, law: Law) -> Density:
        """The law as a function of the height."""
        return partial(super().density_of(law), axis=self.build().axis)


class CharacteristicsDomain(DomainSettings):
    """[density] domain = "characteristics"; `n` has to be said: what suffices depends on the dimension."""

    makes = Characteristics
    domain: Literal["characteristics"]
    n: int
    accuracy: float = Characteristics.accuracy
    most: int = Characteristics.most
    tolerance: float = Characteristics.tolerance

    @property
    def nodes(self) -> int:
        """Those of the beginning, a few times divided."""
        return 4 * self.n


DensityDomain = Annotated[
    CircleDomain | SphereDomain | ZonalDomain | CharacteristicsDomain, Field(discriminator="domain")
]


Measure = Literal["order_parameter", "energy", "free_energy", "mean", "minimum", "tail"]


class DensityRunSettings(Section):
    """[run]: what to measure at every time, and the times of which the density is kept."""

    measure: list[Measure] = Field(default=["order_parameter"])
    snapshots: list[int] = Field(default=[])
