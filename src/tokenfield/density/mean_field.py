"""The verb: carry a density along the mean-field equation of a model.

    ∂_t μ = κ^{−1} Δμ − div(μ X[μ]),   X[μ](x) = P_x ∫(…)dμ, the velocity of the model

A weighted token cloud is an exact solution for κ = ∞; this is the same equation for densities, n → ∞.
"""

import time
from typing import Any

import numpy as np
from jaxtyping import Array
from numpy.typing import ArrayLike
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tokenfield.density.characteristics import Characteristics
from tokenfield.density.circle import Circle
from tokenfield.density.domain import Domain, Problem
from tokenfield.density.result import DensityTrajectory
from tokenfield.density.sphere import Sphere
from tokenfield.density.zonal import Zonal
from tokenfield.errors import RunError, as_number, require, require_increasing, require_kind
from tokenfield.models.base import Model
from tokenfield.models.requirements import check_density
from tokenfield.runs.times import as_times
from tokenfield.runs.watchers import out_of_time

#: Domains by name; a new one has a line here.
DOMAINS: dict[str, type[Domain]] = {kind.name: kind for kind in (Circle, Sphere, Zonal, Characteristics)}


def solve(
    model: Model,
    rho0: Any,
    ts: ArrayLike | Array,
    domain: str | Domain,
    *,
    progress: bool = False,
    strict: bool = True,
    time_limit: float | None = None,
) -> DensityTrajectory:
    """Follow the density ρ0 through the times `ts`.

    Args:
        model: the velocity field; with `+ Noise(kappa)` the law also diffuses.
        rho0: the density at ts[0], a positive function of the places of the domain: of angles on the circle,
            of points (m, d) on the sphere, of heights ⟨x, e⟩ for zonal laws. Need not be normalised.
        ts: increasing times; or one final time, counted from 0.
        domain: a name (see `DOMAINS`) for sensible settings, or a domain object with its own.
        progress: show a bar with the time reached.
        strict: raise `RunError` on numerical trouble instead of returning the part that was finished.
        time_limit: seconds after which the run stops, as after numerical trouble; looked at whenever one of
            `ts` is reached, and counted from the first of them.

    A run whose resolution was too coarse goes on and says so: `resolved` is False and `status` says from
    when, and how much was missed.
    """
    require_kind(model, Model, "model")
    check_density(model)
    times = np.asarray(as_times(ts))
    require_increasing(times, "ts")
    if time_limit is not None:
        require(as_number(time_limit, "time_limit") > 0, "time_limit", "be positive", time_limit)
    place = _domain(domain, model)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("t = {task.fields[t]:.5g}, {task.fields[steps]} steps"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, disable=not progress) as bar:
        task = bar.add_task(f"density, {place.name}", total=times[-1] - times[0], t=times[0], steps=0)

        def watch(t: float, steps: int) -> str:
            bar.update(task, completed=t - times[0], t=t, steps=steps)
            clock.append(time.monotonic())  # the steps to the first time, which compile, do not count
            late = time_limit is not None and clock[-1] - clock[0] > time_limit
            return out_of_time(time_limit) if late else ""

        clock: list[float] = []
        result = place.run(Problem(model.drift, float(model.diffusion), rho0, times), watch)
    if strict and not result.complete:
        raise RunError(result.status, result)
    return result


def _domain(domain: str | Domain, model: Model) -> Domain:
    if isinstance(domain, Domain):
        return domain
    known = isinstance(domain, str) and domain in DOMAINS
    require(known, "domain", f"be a domain object or one of {', '.join(DOMAINS)}", repr(domain))
    return DOMAINS[str(domain)].for_model(model)
