"""Setup: what the controls of the lab say, and the configuration of the run that they mean."""

from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from tokenfield.config.reading import Config, parse
from tokenfield.errors import as_number, as_whole, require
from tokenfield.theory.examples import three_atoms, two_arcs

MODELS = ("softmax", "unnormalised", "hardmax", "zero temperature", "layers")
#: Models whose formula has a temperature.
WARM = ("softmax", "unnormalised", "layers")
#: Most tokens, dimensions and saved times that the controls allow.
MOST_TOKENS, MOST_DIMENSIONS, MOST_FRAMES = 10**6, 64, 1000
#: Tokens closer than this are carried on as one over logarithmic times, which else would be stiff.
MERGE_ANGLE = 1e-3
#: Fixed step where the velocity jumps, so that no error control can work.
ROUGH_STEP = 0.05
#: Accuracy of a step: what the eye and the curves resolve, at a third of the default's cost.
RTOL, ATOL = 1e-6, 1e-8
#: More tokens than this take their time: there are more pictures, each of a shorter time, and beyond the
#: circle steps of this accuracy, below the 1/√n of random tokens.
MANY, LOOSE = 20_000, 1e-4


#: Controls that stand for a setting of a file: its section and its name there.
IN_FILE = {
    "beta": ("model", "beta"),
    "n": ("initial", "n"),
    "key": ("initial", "key"),
    "stop": ("times", "stop"),
    "frames": ("times", "count"),
}


class LawControl(NamedTuple):
    """An initial law of the controls: what its one number means, a good value, and its dimension if fixed."""

    number: str
    good: float
    dimension: int | None = None


LAWS = {
    "uniform, random": LawControl("", 0.0),
    "uniform, even": LawControl("", 0.0),
    "tilted": LawControl("tilt towards e1, below 1", 0.3),
    "around one direction": LawControl("concentration κ", 4.0),
    "cap": LawControl("angle of the cap", 1.0),
    "three atoms": LawControl("ξ of Example 2.5", 0.7, 2),
    "two arcs": LawControl("half width of the arcs", np.pi / 8, 2),
    "two bumps": LawControl("mass of the sharp bump", 0.499, 2),
}


@dataclass(frozen=True)
class Setup:
    """The values of all controls.

    V = R(V_angle) diag(V_spectrum) R(V_angle)ᵀ + turn·J, B likewise without the turn; R(a) and J turn the
    plane of the first two axes by the angle a (degrees) and by 90°. `number` is that of the law. `stop`:
    last time; `frames`: how many are saved, of more than 20,000 tokens the most there may be; `log`: whether
    they are log-spaced. `step`: of the layers. `file`: the configuration that the controls were read from; a
    control that stands for one of its settings changes that, any other makes it the run of the controls.
    """

    model: str = "softmax"
    beta: float = 50.0
    n: int = 2000
    d: int = 3
    law: str = "uniform, random"
    number: float = 0.0
    V_spectrum: tuple[float, ...] = (1.0, 0.5, 0.3)
    V_angle: float = 0.0
    turn: float = 0.0
    B_spectrum: tuple[float, ...] = (0.5, 2.0, 1.0)
    B_angle: float = 0.0
    key: int = 1
    stop: float = 30.0
    frames: int = 301
    log: bool = False
    step: float = 0.1
    file: Config | None = None

    @classmethod
    def of_config(cls, run: Config) -> "Setup":
        """A configuration as a setup: the controls show what they can of it."""
        weights, ts, initial = run.weights.build(), run.times.build(), run.initial
        known = {
            "model": _model_control(run),
            "beta": getattr(run.model, "beta", None) or None,  # no control has β = 0
            "n": initial.size,
            "d": weights.d,
            "V_spectrum": _diagonal(weights.V),
            "B_spectrum": _diagonal(weights.B),
            "key": getattr(initial, "key", None),
            "stop": float(ts[-1]),
            "frames": len(ts),
            "log": run.times.spacing == "log",
            "step": getattr(run.solver, "step", None),
        }
        return cls(**{name: value for name, value in known.items() if value is not None}, file=run)

    def config(self) -> Config:
        """The configuration, every value checked."""
        if self.file is not None:
            return self._changed_file(self.file)
        self._check()
        settings: dict[str, Any] = {
            "weights": {
                "V": _matrix(self.V_spectrum, self.V_angle, self.turn, self.d, "eigenvalues of V"),
                "B": _matrix(self.B_spectrum, self.B_angle, 0.0, self.d, "eigenvalues of B"),
            },
            "model": self._model(),
            "initial": self._initial(),
            "times": self._times(),
            "solver": self._solver(),
        }
        if self.log and self.model != "layers":
            settings["run"] = {"merge_angle": MERGE_ANGLE}
        return parse(settings)

    def _changed_file(self, file: Config) -> Config:
        """The file with the controls that were changed since it was read."""
        before, settings = Setup.of_config(file), file.model_dump(exclude_none=True)
        for name in (each.name for each in fields(self) if each.name != "file"):
            if getattr(self, name) == getattr(before, name):
                continue
            section, setting = IN_FILE.get(name, ("", ""))
            if setting not in settings.get(section, {}):
                return replace(self, file=None).config()
            settings[section][setting] = getattr(self, name)
        return parse(settings)

    def _check(self) -> None:
        require(self.model in MODELS, "model", f"be one of {', '.join(MODELS)}", repr(self.model))
        require(self.law in LAWS, "initial law", f"be one of {', '.join(LAWS)}", repr(self.law))
        whole = (
            ("tokens", self.n, 1, MOST_TOKENS),
            ("dimension", self.d, 2, MOST_DIMENSIONS),
            ("frames", self.frames, 3, MOST_FRAMES),
        )
        for name, value, least, most in whole:
            as_whole(value, name, least)
            require(value <= most, name, f"be at most {most}", value)
        as_whole(self.key, "seed", 0)
        for name, value in (("until t", self.stop), ("layer step", self.step)):
            require(0 < as_number(value, name) < np.inf, name, "be positive and finite", value)
        fixed = LAWS[self.law].dimension
        require(fixed in (None, self.d), "dimension", f"be {fixed} for the law '{self.law}'", self.d)

    def _model(self) -> dict[str, Any]:
        kind = {"layers": "softmax", "zero temperature": "zero-temperature"}.get(self.model, self.model)
        return {"kind": kind} | ({"beta": self.beta} if self.model in WARM else {})

    def _initial(self) -> dict[str, Any]:
        n, d, axis = self.n, self.d, np.eye(self.d)[0].tolist()
        match self.law:
            case "uniform, random":
                return {"law": "uniform", "n": n, "d": d, "key": self.key}
            case "around one direction":
                return {
                    "law": "von_mises_fisher",
                    "n": n,
                    "mean": _askew(d),
                    "kappa": self.number,
                    "key": self.key,
                }
            case "cap":
                return {"law": "cap", "n": n, "centre": _askew(d), "angle": self.number, "key": self.key}
            case "three atoms" | "two arcs":
                atoms = (
                    three_atoms(self.number)
                    if self.law == "three atoms"
                    else two_arcs(max(1, n // 2), 0.7, self.number)
                )
                return {
                    "law": "atoms",
                    "x": np.asarray(atoms.x).tolist(),
                    "weights": np.asarray(atoms.weights).tolist(),
                }
            case "two bumps":
                return {"law": "circle_density", "n": n} | _two_bumps(self.number)
        tilt = self.number if self.law == "tilted" else 0.0
        require(abs(tilt) < 1, LAWS["tilted"].number, "lie between −1 and 1", tilt)
        if d == 2:
            return {"law": "circle_density", "n": n, "cos": [tilt]}
        return {"law": "sphere_density", "n": n, "d": d, "linear": (tilt * np.array(axis)).tolist()}

    def _times(self) -> dict[str, Any]:
        if self.model == "layers":
            return {"at": self._whole_layers()}
        if self.log:
            return {"spacing": "log", "first": self.stop * 1e-4, "stop": self.stop, "count": self._count}
        return {"stop": self.stop, "count": self._count}

    @property
    def _count(self) -> int:
        """How many times are saved."""
        return self.frames if self.n <= MANY else MOST_FRAMES

    def _whole_layers(self) -> list[float]:
        """Saved times that are whole numbers of layers."""
        last = max(1, round(self.stop / self.step))
        spaced = np.geomspace(1, last, self._count - 1) if self.log else np.linspace(0, last, self._count)
        layers = np.unique(np.concatenate([[0], np.round(spaced)]))
        return (layers * self.step).tolist()

    def _solver(self) -> dict[str, Any]:
        if self.model == "layers":
            return {"kind": "layers", "step": self.step}
        if self.model == "hardmax" or (self.model in WARM and np.isinf(self.beta)):
            return {"kind": "rk4", "step": ROUGH_STEP}
        # over logarithmic times, and on the circle, where sums are quick, errors may grow for long
        rtol = LOOSE if self.n > MANY and self.d > 2 and not self.log else RTOL
        return {"kind": "adaptive", "rtol": rtol, "atol": ATOL}


def _model_control(run: Config) -> str | None:
    """The model as the controls call it; None if they do not have it."""
    kind = run.model.entry.name
    if kind == "softmax" and run.solver.entry.name == "layers":
        return "layers"
    name = kind.replace("-", " ")
    return name if name in MODELS else None


def _diagonal(matrix: Any) -> tuple[float, ...]:
    """The diagonal, of the first head."""
    array = np.asarray(matrix)
    return tuple(np.diag(array.reshape(-1, *array.shape[-2:])[0]).tolist())


def fitted(spectrum: tuple[float, ...], d: int) -> tuple[float, ...]:
    """The eigenvalues for another dimension: cut, or the last one repeated."""
    return (*spectrum, *spectrum[-1:] * d)[:d]


def _matrix(spectrum: tuple[float, ...], angle: float, turn: float, d: int, name: str) -> dict[str, Any]:
    require(len(spectrum) == d, name, f"be {d} numbers, one for each dimension", f"{len(spectrum)} numbers")
    for value in (*spectrum, angle, turn):
        require(bool(np.isfinite(as_number(value, name))), name, "be finite", value)
    if angle == 0 and turn == 0:
        return {"diag": list(spectrum)}
    rotation, quarter = np.eye(d), np.zeros((d, d))
    c, s = np.cos(np.radians(angle)), np.sin(np.radians(angle))
    rotation[:2, :2], quarter[:2, :2] = [[c, -s], [s, c]], [[0, -1], [1, 0]]
    return {"rows": (rotation @ np.diag(spectrum) @ rotation.T + turn * quarter).tolist()}


def _askew(d: int) -> list[float]:
    """A direction that is no eigenvector of anything here."""
    axis = 1.0 / np.arange(1, d + 1)
    return (axis / np.linalg.norm(axis)).tolist()


def _two_bumps(mass: float) -> dict[str, list[float]]:
    """Fourier coefficients of mass·VonMises(0, 50) + (1−mass)·VonMises(π−10⁻⁴, 5), profile C of Figure 4."""
    require(0 < mass < 1, LAWS["two bumps"].number, "lie between 0 and 1", mass)
    k = np.arange(1, 81)
    sharp, broad = (2 * special.ive(k, kappa) / special.ive(0, kappa) for kappa in (50.0, 5.0))
    cos = mass * sharp + (1 - mass) * broad * np.cos(k * (np.pi - 1e-4))
    return {"cos": cos.tolist(), "sin": ((1 - mass) * broad * np.sin(k * (np.pi - 1e-4))).tolist()}
