"""The mean-field limit: how far n tokens are from the density, over time and over n.

Three flows with a density that is known by other means than tokens:

- d = 2, softmax at β = 4 with V Bᵀ ≠ I: characteristics. On the circle the flow carries quantiles to
  quantiles, so the density at a later time is a cloud of any size: the nodes' map from angle to angle,
  interpolated. W2 is exact.
- d = 3, softmax at β = 3 with V Bᵀ ≠ I: spherical harmonics.
- d = 5, β = 0: the Poisson family, a closed form; n tokens then move by a Lorentz boost (theory §4).

Distances: W2 (d = 2); the error of the moments ∫x dμ and ∫xxᵀ dμ; and, in every dimension, the mean distance
from a point of the density to the nearest token, below which W1 cannot fall however tokens are weighted.

Independent tokens lose n^{−1/2} in every moment and cover space like n^{−1/(d−1)}. Quadrature tokens of
smooth densities have moments to all digits, and W2 is their spacing, 1/n on the circle.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import xarray as xr
from matplotlib.figure import Figure
from scipy.interpolate import CubicSpline
from scipy.spatial import KDTree

import tokenfield as tkf
from tokenfield.papers import declared
from tokenfield.papers.low_temperature import worked
from tokenfield.papers.recipe import Check, Progress, Recipe, Result, at_most, near

KINDS = ("iid", "quadrature")
TS = {2: np.linspace(0, 2, 5), 3: np.linspace(0, 1, 3), 5: np.linspace(0, 1, 3)}
MODELS = {
    2: tkf.SoftmaxAttention(worked.CIRCLE, 4.0),
    3: tkf.SoftmaxAttention(tkf.AttentionWeights(np.eye(3), np.diag([1.0, 0.5, 0.2])), 3.0),
}
#: The Poisson law of d = 5.
AXIS, RADIUS = np.eye(5)[0], 0.3
#: Tokens of the reference on the circle for each token compared with it.
FINER, FINEST = 8, 4 * 10**6
#: Nodes of the density on the circle, quick or not. Its map from angle to angle is a cubic spline between
#: them, off by 1.1e-5 in W2 with 256 and by 8e-7 with 1024 (against 4096); a million tokens are off by 3e-6.
NODES = {True: 256, False: 1024}
#: Error of the moments that a density may have by its own account.
ACCURACY = 1e-6

SAMPLING = "central limit theorem"
COVERING = "n balls cover a sphere of dimension d − 1"
SPECTRAL = "quadrature of smooth densities"


class Reference(NamedTuple):
    """The density: moments (times, d + d²), points (times, m, d), masses (times, m), the error it states."""

    moments: np.ndarray
    points: np.ndarray
    masses: np.ndarray
    error: float


def _sizes(quick: bool) -> dict[int, list[int]]:
    return {
        2: [64, 256, 1024] if quick else [100, 316, 1000, 3162, 10**4, 10**5, 10**6],
        3: [128, 512, 1152] if quick else [128, 512, 2048, 8192, 32_768, 10**6],
        5: [64, 256, 1024, 4096, 16_384] if quick else [100, 1000, 10**4, 10**5, 10**6],
    }


def _keys(n: int, j: int) -> list[int]:
    """Keys of the independent draws of n tokens, the j-th size: others for other n."""
    return [1000 * j + k for k in range(24 if n < 3000 else 6 if n < 50_000 else 2)]


def grids(quick: bool) -> dict[str, dict[str, Any]]:
    """For d = 2 and 3 and every n a sweep: independent tokens, a cell for each draw, and quadrature ones."""
    made = {}
    for d, ns in _sizes(quick).items():
        if d in MODELS:
            made |= {f"d{d}-n{n}": _grid(d, n, _keys(n, j)) for j, n in enumerate(ns)}
    return made


def _grid(d: int, n: int, keys: list[int]) -> dict[str, Any]:
    laws = [law(d, n, key) for key in keys] + [law(d, n, None)]
    summation = "direct" if n <= worked.DIRECT else "auto"
    return {
        "weights": declared.attention(MODELS[d].weights),
        "model": {"kind": "softmax", "beta": float(MODELS[d].beta)},
        "times": {"at": TS[d].tolist()},
        "solver": declared.adaptive(tkf.Adaptive(rtol=1e-7, atol=1e-9)),
        "run": {"measure": [], "snapshots": list(range(len(TS[d]))), "summation": summation},
        "sweep": {"initial": laws},
    }


def law(d: int, n: int, key: int | None) -> dict[str, Any]:
    """[initial]: tokens of the density 1 + ⟨tilt, x⟩.

    Args:
        d: dimension of the surrounding space, 2 or 3.
        n: how many tokens.
        key: seed of independent tokens; None: quadrature tokens.
    """
    drawn = {} if key is None else {"key": key}
    if d == 2:
        return {"law": "circle_density", "n": n, "cos": [worked.TILT[0]], "sin": [worked.TILT[1]]} | drawn
    return {"law": "sphere_density", "n": n, "d": d, "linear": list(worked.TILT)} | drawn


def run(quick: bool, progress: Progress, swept: Mapping[str, xr.Dataset]) -> Result:
    """Run the recipe and judge what it finds.

    Args:
        quick: whether the smaller size is wanted.
        progress: called with the share done and what is being done.
        swept: datasets of the declared sweeps, by name.
    """
    sizes, data, checks = _sizes(quick), {}, []
    for share, d in ((0.0, 2), (0.4, 3), (0.75, 5)):
        progress(share, f"the density, d = {d}")
        reference = {2: lambda: _circle(NODES[quick]), 3: _sphere, 5: _poisson}[d]()
        checks.append(
            at_most(
                f"error that the density states, d = {d}",
                reference.error,
                ACCURACY,
                "two resolutions, the highest degrees, or a closed form",
            )
        )
        found = {kind: [] for kind in KINDS}
        for j, n in enumerate(sizes[d]):
            progress(share + 0.3 * (j + 0.5) / len(sizes[d]), f"distances, d = {d}, n = {n}")
            if d in MODELS:
                *drawn, quadrature = map(_clouds, declared.runs(swept[f"d{d}-n{n}"]))
                found["quadrature"].append(_distances(d, quadrature, reference))
            else:
                drawn = (_boosted(n, key) for key in _keys(n, j))
            squares = [_distances(d, clouds, reference) ** 2 for clouds in drawn]
            found["iid"].append(np.sqrt(np.mean(squares, axis=0)))
        for kind, values in found.items():
            if values:
                data[d, kind] = np.stack(values)  # (n, times, distance)
        checks += _checks(d, np.array(sizes[d]), data)
    return Result(checks, _rows(sizes, data), _dataset(sizes, data), figure(sizes, data))


RECIPE = Recipe(
    "mean-field-limit",
    "n tokens against the density over time: exponents of n for iid and quadrature tokens, d = 2, 3, 5",
    run,
    grids,
)

#: The columns of what is measured.
DISTANCES = ("moments", "nearest", "W2")


def _distances(d: int, clouds: Sequence[tkf.Tokens], reference: Reference) -> np.ndarray:
    """(times, 3): error of the moments, mean distance to the nearest token, W2 (NaN if unknown)."""
    rows = []
    for k, cloud in enumerate(clouds):
        x = np.asarray(cloud.x)
        off = np.linalg.norm(_moments(cloud) - reference.moments[k])
        chord, _ = KDTree(x).query(reference.points[k])
        nearest = reference.masses[k] @ (2 * np.arcsin(np.minimum(chord / 2, 1)))
        w2 = (
            np.nan
            if d != 2
            else tkf.wasserstein(cloud, _quantiles(reference, k, min(FINER * cloud.n, FINEST))).value
        )
        rows.append((off, nearest, w2))
    return np.array(rows)


def _moments(tokens: tkf.Tokens) -> np.ndarray:
    """∫x dμ and ∫xxᵀ dμ in a row."""
    mean, second = tokens.moments()
    return np.concatenate([np.asarray(mean), np.asarray(second).ravel()])


def _clouds(run: tkf.Trajectory) -> list[tkf.Tokens]:
    return [run.tokens(k) for k in range(len(run.snapshot_ts))]


def _boosted(n: int, key: int) -> list[tkf.Tokens]:
    """n independent tokens of the Poisson law at the times of d = 5."""
    tokens = tkf.initial.poisson(n, RADIUS * AXIS, key)
    return [tkf.Tokens(x, tokens.weights) for x in tkf.theory.lorentz(tokens.x, tokens.weights, TS[5])]


def _circle(n: int) -> Reference:
    domain = tkf.density.Characteristics(n=n, accuracy=ACCURACY, tolerance=1e-9)
    found = tkf.density.solve(MODELS[2], worked.density, TS[2], domain)
    order = np.argsort(np.arctan2(found.nodes[0, :, 1], found.nodes[0, :, 0]))
    moments = np.stack([_moments(found.tokens(k)) for k in range(len(TS[2]))])
    nodes = Reference(moments, found.nodes[:, order], found.masses[:, order], float(found.tail.max()))
    # so many that equispaced tokens do not coincide with them
    finer = [_quantiles(nodes, k, 8191) for k in range(len(TS[2]))]
    return nodes._replace(
        points=np.stack([np.asarray(law.x) for law in finer]),
        masses=np.stack([np.asarray(law.weights) for law in finer]),
    )


def _quantiles(reference: Reference, k: int, n: int) -> tkf.Tokens:
    """The law at the k-th time as n tokens: the flow from angle to angle, at equispaced angles."""
    before, after = (
        np.unwrap(np.arctan2(p[:, 1], p[:, 0])) for p in (reference.points[0], reference.points[k])
    )
    turn = lambda a: np.append(a, a[0] + 2 * np.pi)  # noqa: E731
    shift = turn(after - before)
    shift[-1] = shift[0]
    flow = CubicSpline(turn(before), shift, bc_type="periodic")
    start = (np.arange(n) + 0.5) * (2 * np.pi / n)
    mass = worked.density(np.stack([np.cos(start), np.sin(start)], axis=1))
    end = start + flow((start - before[0]) % (2 * np.pi) + before[0])
    return tkf.Tokens(np.stack([np.cos(end), np.sin(end)], axis=1), mass / mass.sum())


def _sphere() -> Reference:
    found = tkf.density.solve(MODELS[3], worked.density, TS[3], tkf.density.Sphere(40))
    moments = np.stack([_moments(found.tokens(k)) for k in range(len(TS[3]))])
    points = np.broadcast_to(found.nodes, (len(TS[3]), *found.nodes.shape))
    return Reference(moments, points, found.masses, float(found.tail.max()))


def _poisson() -> Reference:
    """Independent points of the law itself at every time."""
    orders = tkf.theory.poisson_order(TS[5], RADIUS, 5)
    grid = np.linspace(0, 0.999, 100_000)
    radii = np.interp(orders, tkf.theory.poisson_radius_order(grid, 5), grid)
    points = np.stack([np.asarray(tkf.initial.poisson(4000, r * AXIS, 99).x) for r in radii])
    fine = [tkf.initial.poisson(8 * 400, r * AXIS) for r in radii]  # Gauss nodes in the height
    moments = np.stack([_moments(law) for law in fine])
    return Reference(moments, points, np.full(points.shape[:2], 1 / 4000), 0.0)


def _slope(ns: np.ndarray, values: np.ndarray) -> float:
    """Exponent of n, by least squares of the logarithms."""
    return float(np.polyfit(np.log(ns), np.log(values), 1)[0])


def _checks(d: int, ns: np.ndarray, data: dict) -> list[Check]:
    """At the last time."""
    iid = data[d, "iid"][:, -1]
    mean, nearest, w2 = iid.T
    power = -1 / (d - 1)
    checks = [
        near(
            f"exponent of n, error of the moments, d = {d}, iid",
            _slope(ns, mean),
            -0.5,
            SAMPLING,
            absolute=0.1,
        ),
        near(
            f"exponent of n, nearest token, d = {d}, iid", _slope(ns, nearest), power, COVERING, absolute=0.06
        ),
    ]
    if d == 5:
        return checks
    mean, nearest, w2_quadrature = data[d, "quadrature"][:, -1].T
    checks += [
        near(
            f"exponent of n, nearest token, d = {d}, quadrature",
            _slope(ns, nearest),
            power,
            COVERING,
            absolute=0.06,
        ),
        at_most(
            f"error of the moments, d = {d}, quadrature, n = {ns[-1]}", mean[-1], 10 * ACCURACY, SPECTRAL
        ),
    ]
    if d == 2:
        checks += [
            near("exponent of n, W2, d = 2, iid", _slope(ns, w2), -0.5, SAMPLING, absolute=0.1),
            near(
                "exponent of n, W2, d = 2, quadrature",
                _slope(ns, w2_quadrature),
                -1.0,
                COVERING,
                absolute=0.06,
            ),
        ]
    return checks


def _rows(sizes: dict, data: dict) -> list:
    return [
        {"d": d, "kind": kind, "n": n, "t": t} | dict(zip(DISTANCES, map(float, values[i, k]), strict=True))
        for (d, kind), values in data.items()
        for i, n in enumerate(sizes[d])
        for k, t in enumerate(TS[d])
    ]


def _dataset(sizes: dict, data: dict) -> xr.Dataset:
    variables = {f"d{d}_{kind}": ((f"n_d{d}", f"t_d{d}", "distance"), v) for (d, kind), v in data.items()}
    coords = {f"n_d{d}": ns for d, ns in sizes.items()} | {f"t_d{d}": ts for d, ts in TS.items()}
    return xr.Dataset(variables, coords, {"distance": ", ".join(DISTANCES)})


@matplotlib.rc_context(tkf.figures.STYLE)
def figure(sizes: dict, data: dict) -> Figure:
    """W2 over time and over n on the circle; errors of moments and nearest tokens over n in all."""
    drawing = Figure(figsize=(10.5, 7.6), layout="constrained")
    ((over_time, transport), (means, nearest)) = drawing.subplots(2, 2)
    ns = np.array(sizes[2])
    colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.85, len(ns)))
    for i, n in enumerate(ns):
        for kind, style in (("iid", "-"), ("quadrature", (0, (3, 2)))):
            name = f"n = {n}" if kind == "iid" else None
            over_time.semilogy(TS[2], data[2, kind][i, :, 2], color=colours[i], linestyle=style, label=name)
    over_time.set(xlabel="t", ylabel="W2 to the density")
    over_time.set_title("d = 2; solid: iid, dashed: quadrature", loc="left", fontsize=11)
    over_time.set_ylim(bottom=0.01 * over_time.get_ylim()[0])
    over_time.legend(fontsize=8, ncols=3, loc="lower right")
    for kind, marker, power in (("iid", "o", -0.5), ("quadrature", "s", -1.0)):
        values = data[2, kind][:, -1, 2]
        colour = tkf.figures.PALETTE[KINDS.index(kind)]
        transport.loglog(ns, values, marker, color=colour, label=f"{kind}, slope {_slope(ns, values):.2f}")
        transport.loglog(
            ns, values[0] * (ns / ns[0]) ** power, color=colour, linestyle=(0, (3, 2)), linewidth=1
        )
    transport.set(xlabel="n", ylabel="W2 to the density")
    transport.set_title(f"d = 2, t = {TS[2][-1]:g}; dashed: n^(−1/2), n^(−1)", loc="left", fontsize=11)
    transport.legend(fontsize=9)
    for (d, kind), values in data.items():
        ns, colour = np.array(sizes[d]), tkf.figures.PALETTE[{2: 0, 3: 1, 5: 2}[d]]
        style = {"iid": "o-", "quadrature": "s--"}[kind]
        means.loglog(
            ns,
            np.maximum(values[:, -1, 0], 1e-12),
            style,
            color=colour,
            markersize=4,
            linewidth=1.2,
            label=f"d = {d}, {kind}",
        )
        found = values[:, -1, 1]
        nearest.loglog(ns, found, style, color=colour, markersize=4, linewidth=1.2, label=f"d = {d}, {kind}")
    line = np.array([64.0, max(max(s) for s in sizes.values())])
    means.loglog(line, 0.6 * line**-0.5, color="0", linestyle=(0, (1, 1.5)), label="n^(−1/2)")
    means.set(xlabel="n", ylabel="error of the first two moments")
    means.set_title("smooth means at the last time", loc="left", fontsize=11)
    means.legend(fontsize=8)
    nearest.set(xlabel="n", ylabel="mean distance to the nearest token")
    nearest.set_title("a lower bound of W1: slopes −1/(d − 1)", loc="left", fontsize=11)
    nearest.legend(fontsize=8)
    return drawing
