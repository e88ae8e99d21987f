"""Presets: setups named after the phenomenon that they show, with what to look for."""

from typing import NamedTuple

import numpy as np

from tokenfield.lab.setup import Setup


class Preset(NamedTuple):
    """A named setup and what one sees."""

    setup: Setup
    about: str


#: The circle with the matrices of the identity, for the examples of the clustering paper.
_CIRCLE = Setup(
    model="unnormalised", beta=1.0, d=2, n=400, V_spectrum=(1.0, 1.0), B_spectrum=(1.0, 1.0), law="tilted"
)


def _circle(**values: object) -> Setup:
    return Setup(**(vars(_CIRCLE) | values))  # type: ignore[arg-type]


PRESETS: dict[str, Preset] = {
    "concentration, then escape": Preset(
        Setup(n=2000),
        "Tokens run to **E**, the dominant direction of V Bᵀ (blue), as if the temperature were zero, and "
        "stay there. Then their clusters become so narrow that each sees only itself; they leave along V "
        "and end in the dominant direction of **V** (orange). Watch W2 fall, bottom out and grow. "
        "arXiv 2605.10931.",
    ),
    "the same on the circle": Preset(
        Setup(d=2, beta=100.0, n=2000, law="tilted", number=0.3, V_spectrum=(1.0, 0.5),
              B_spectrum=(0.5, 2.0), stop=30.0, frames=301),
        "The worked case: V = diag(1, ½), B = diag(½, 2). W2 falls at the rate ¼, bottoms near t = 11 and "
        "grows again at about ½ as the clusters leave for ±e1. A larger β delays the escape like log β.",
    ),
    "two clusters that last": Preset(
        Setup(model="unnormalised", beta=1.0, V_spectrum=(2.0, 1.0, 0.5), B_spectrum=(2.0, 1.0, 0.5),
              law="uniform, even", stop=4.0, frames=241),
        "Here V and V Bᵀ have the same dominant direction, so nothing makes the tokens leave: two antipodal "
        "clusters are stable for ever. One must not expect a single cluster where V is not the identity.",
    ),
    "rotating": Preset(
        Setup(beta=30.0, V_spectrum=(1.0, 1.0, 0.2), turn=0.6, B_spectrum=(1.0, 1.0, 1.0), n=2000, stop=25.0),
        "V Bᵀ is not symmetric: its dominant eigenvalues are a complex pair. Tokens fall on the plane **E** "
        "and circulate there; there is no limit law.",
    ),
    "Example 2.5": Preset(
        _circle(law="three atoms", number=0.7, n=3, stop=12.0, frames=241),
        "Three atoms on the circle. R begins above ξ = 0.7 and yet they do not synchronise: the two near "
        "ones meet at 0 and the third stays opposite. A large order parameter proves nothing. "
        "arXiv 2504.14697.",
    ),
    "Example 2.6": Preset(
        _circle(law="two arcs", number=float(np.pi / 8), beta=4.0, stop=3.0, frames=241),
        "Mass 0.7 on one arc, 0.3 on the opposite one. Above a critical β (0.599 here) both arcs keep their "
        "tokens and R → 0.4. Lower β to 0.3 and the same tokens synchronise.",
    ),
    "non-monotone R": Preset(
        _circle(law="two bumps", number=0.499, beta=0.1, n=2000, stop=14.0, frames=281),
        "The energy always grows, the order parameter R need not: from these two bumps it goes up, down "
        "(from t = 1.1 to 5.8) and up again until all tokens are one.",
    ),
    "clusters that wait and merge": Preset(
        Setup(beta=9.0, n=300, law="uniform, random", V_spectrum=(1.0,) * 3, B_spectrum=(1.0,) * 3,
              stop=1e5, frames=201, log=True),
        "V = B = I. Clusters form quickly, then wait and merge over exponentially long times: look at the "
        "time on its logarithmic scale.",
    ),
}  # fmt: skip
