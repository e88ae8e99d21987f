"""Presets: setups named after the phenomenon that they show, with what to look for.

A preset is a function that gives a `Setup` or a configuration, as a table of sections or parsed; it is
registered, and its documentation is what the lab shows beside it.
"""

import inspect
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from tokenfield.config import reading as config
from tokenfield.lab.setup import Setup
from tokenfield.registry import entries, register


class Preset(NamedTuple):
    """A named setup and what one sees."""

    setup: Setup
    about: str


class Presets(Mapping[str, Preset]):
    """All presets that are registered, by name."""

    def __getitem__(self, name: str) -> Preset:
        entry = entries("preset")[name]
        made = entry.make()
        if isinstance(made, Mapping):
            made = config.parse(dict(made))
        setup = made if isinstance(made, Setup) else Setup.of_config(made)
        return Preset(setup, " ".join((inspect.getdoc(entry.make) or "").split()))

    def __iter__(self) -> Iterator[str]:
        return iter(entries("preset"))

    def __len__(self) -> int:
        return len(entries("preset"))


PRESETS = Presets()


#: The circle with the matrices of the identity, for the examples of the clustering paper.
_CIRCLE = Setup(
    model="unnormalised", beta=1.0, d=2, n=400, V_spectrum=(1.0, 1.0), B_spectrum=(1.0, 1.0), law="tilted"
)


def _circle(**values: object) -> Setup:
    return Setup(**(vars(_CIRCLE) | values))  # type: ignore[arg-type]


@register("preset", "concentration, then escape")
def concentration() -> Setup:
    """Tokens run to **E**, the dominant direction of V Bᵀ (blue), as if the temperature were zero, and stay
    there. Then their clusters become so narrow that each sees only itself; they leave along V and end in the
    dominant direction of **V** (orange). Watch W2 fall, bottom out and grow. arXiv 2605.10931.
    """
    return Setup(n=2000)


@register("preset", "the same on the circle")
def circle() -> Setup:
    """The worked case: V = diag(1, ½), B = diag(½, 2). W2 falls at the rate ¼, bottoms near t = 11 and grows
    again at about ½ as the clusters leave for ±e1. A larger β delays the escape like log β.
    """
    return Setup(
        d=2,
        beta=100.0,
        n=2000,
        law="tilted",
        number=0.3,
        V_spectrum=(1.0, 0.5),
        B_spectrum=(0.5, 2.0),
        stop=30.0,
        frames=301,
    )


@register("preset", "two clusters that last")
def two_clusters() -> Setup:
    """Here V and V Bᵀ have the same dominant direction, so nothing makes the tokens leave: two antipodal
    clusters are stable for ever. One must not expect a single cluster where V is not the identity.
    """
    return Setup(
        model="unnormalised",
        beta=1.0,
        V_spectrum=(2.0, 1.0, 0.5),
        B_spectrum=(2.0, 1.0, 0.5),
        law="uniform, even",
        stop=4.0,
        frames=241,
    )


@register("preset", "rotating")
def rotating() -> Setup:
    """V Bᵀ is not symmetric: its dominant eigenvalues are a complex pair. Tokens fall on the plane **E** and
    circulate there; there is no limit law.
    """
    return Setup(
        beta=30.0, V_spectrum=(1.0, 1.0, 0.2), turn=0.6, B_spectrum=(1.0, 1.0, 1.0), n=2000, stop=25.0
    )


@register("preset", "Example 2.5")
def example_2_5() -> Setup:
    """Three atoms on the circle. R begins above ξ = 0.7 and yet they do not synchronise: the two near ones
    meet at 0 and the third stays opposite. A large order parameter proves nothing. arXiv 2504.14697.
    """
    return _circle(law="three atoms", number=0.7, n=3, stop=12.0, frames=241)


@register("preset", "Example 2.6")
def example_2_6() -> Setup:
    """Mass 0.7 on one arc, 0.3 on the opposite one. Above a critical β (0.599 here) both arcs keep their
    tokens and R → 0.4. Lower β to 0.3 and the same tokens synchronise.
    """
    return _circle(law="two arcs", number=float(np.pi / 8), beta=4.0, stop=3.0, frames=241)


@register("preset", "non-monotone R")
def non_monotone() -> Setup:
    """The energy always grows, the order parameter R need not: from these two bumps it goes up, down (from t
    = 1.1 to 5.8) and up again until all tokens are one.
    """
    return _circle(law="two bumps", number=0.499, beta=0.1, n=2000, stop=14.0, frames=281)


@register("preset", "clusters that wait and merge")
def waiting_clusters() -> Setup:
    """V = B = I. Clusters form quickly, then wait and merge over exponentially long times: look at the time
    on its logarithmic scale.
    """
    return Setup(
        beta=9.0,
        n=300,
        law="uniform, random",
        V_spectrum=(1.0,) * 3,
        B_spectrum=(1.0,) * 3,
        stop=1e5,
        frames=201,
        log=True,
    )
