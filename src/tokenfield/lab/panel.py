"""The panel: controls on the right, the phase and the curves on the left. It emits events; the app decides.

Every control calls `emit(what, value)` when a person changes it, and is set again by `show_*`.
"""

import html
from collections.abc import Callable
from typing import Any

import numpy as np
from viser import Icon

from tokenfield.errors import InputError
from tokenfield.lab.colouring import COLOURINGS, EIGENSPACE_COLOURS, swatch
from tokenfield.lab.frame import MAX_CURVE_POINTS, Stage
from tokenfield.lab.phase import PhaseLabel
from tokenfield.lab.presets import PRESETS
from tokenfield.lab.scene import PROJECTIONS
from tokenfield.lab.setup import LAWS, MODELS, WARM, Setup

#: The slider of log10 β goes so far; beyond the last number stands infinity.
LARGEST_LOG_BETA, INFINITE_LOG_BETA = 4.0, 4.2
#: How times are spaced.
TIME_SCALES = ("linear", "logarithmic")
#: Least value on a logarithmic axis.
SMALLEST_PLOTTED = 1e-6
#: Colours of the phases' names.
PHASE_COLOURS = {
    "concentration": EIGENSPACE_COLOURS[0],
    "metastable": "#009E73",
    "escape": "#E69F00",
    "terminal": EIGENSPACE_COLOURS[1],
}

#: The lines of the charts with their colours.
CHART_LINES = {
    "distance": (("measured", EIGENSPACE_COLOURS[0]), ("predicted rate", "#777777")),
    "angles": (("of V Bᵀ", EIGENSPACE_COLOURS[0]), ("of V", EIGENSPACE_COLOURS[1])),
    "order": (("R", "#009E73"), ("energy / its maximum", "#CC79A7")),
    "clusters": (("", "#555555"),),
}

#: Axes that stay in the background.
AXIS_STYLE: dict[str, Any] = {"ticks": {"show": False}, "grid": {"stroke": "#e6e8eb", "width": 1}}

Emit = Callable[[str, Any], None]


class Panel:
    """All that is not the scene."""

    def __init__(self, server: Any, emit: Emit):
        self.gui, self._emit = server.gui, emit
        self.gui.configure_theme(show_logo=False, show_share_button=False, brand_color=(0, 114, 178))
        self._curves_panel()
        self._play()
        self._phenomenon()
        self._run()
        self._matrices()
        self._view()
        self._files()
        self.gui.main_panel.dock_right()
        self.gui.main_panel.set_width(330)

    # -- controls

    def _on(self, control: Any, what: str) -> Any:
        """Emit the event `what` when a person, not the program, changes the control."""

        @control.on_update
        def _(event: Any) -> None:
            if event.client is not None:
                self._emit(what, control.value)

        return control

    def _button(self, label: str, what: str, icon: Any = None, hint: str | None = None) -> Any:
        button = self.gui.add_button(label, icon=icon, hint=hint)
        button.on_click(lambda _: self._emit(what, None))
        return button

    def _play(self) -> None:
        gui = self.gui
        self.play = self._button("Play", "play", Icon.PLAYER_PLAY)
        self.more = gui.add_button_group("", ("Step", "Restart", "Stop computing"))
        self.more.on_click(lambda event: self._emit(str(event.target.value), None))
        self.time = self._on(
            gui.add_slider("time", 0, 1, 1, 0, hint="Scrub through the frames computed so far."), "scrub"
        )
        self.speed = self._on(gui.add_slider("speed", 1, 60, 1, 12, hint="Frames a second."), "speed")
        self.computed = gui.add_progress_bar(0.0)
        self.status = gui.add_html("")

    def _phenomenon(self) -> None:
        self.preset = self._on(self.gui.add_dropdown("phenomenon", tuple(PRESETS)), "preset")
        self.about = self.gui.add_markdown("")

    def _run(self) -> None:
        gui = self.gui
        with gui.add_folder("Run"):
            self.model = self._on(gui.add_dropdown("model", MODELS), "model")
            self.beta = self._on(
                gui.add_slider(
                    "β",
                    -1.0,
                    INFINITE_LOG_BETA,
                    0.05,
                    1.7,
                    marks=((-1.0, "0.1"), (0.0, "1"), (1.0, "10"), (2.0, "100"), (3.0, "10³"), (4.2, "∞")),
                    hint="Inverse temperature; the slider is log10 of it, its right end is β = ∞.",
                ),
                "beta",
            )
            self.step = self._on(gui.add_number("layer step", 0.1, step=0.01), "step")
            self.n = self._on(gui.add_number("tokens", 2000, step=1, hint="Up to a million."), "n")
            self.d = self._on(gui.add_number("dimension", 3, step=1, hint="2: circle, 3: sphere."), "d")
            self.law = self._on(gui.add_dropdown("initial law", tuple(LAWS)), "law")
            self.number = self._on(gui.add_number("κ", 0.0, step=0.001), "number")
            self.key = self._on(gui.add_number("seed", 1, step=1), "key")
            self.stop = self._on(gui.add_number("until t", 30.0, step=0.1), "stop")
            self.log = self._on(
                gui.add_dropdown("time scale", TIME_SCALES, hint="Of frames and curves."), "log"
            )

    def _matrices(self) -> None:
        gui = self.gui
        with gui.add_folder("Matrices", expand_by_default=False):
            hint = "One for each dimension, separated by commas."
            self.V_spectrum = self._on(gui.add_text("eigenvalues of V", "", hint=hint), "V_spectrum")
            self.V_angle = self._on(gui.add_slider("angle of V (°)", -90.0, 90.0, 1.0, 0.0), "V_angle")
            self.turn = self._on(
                gui.add_slider("turn of V", -2.0, 2.0, 0.05, 0.0, hint="V + turn·J: not symmetric, rotates."),
                "turn",
            )
            self.B_spectrum = self._on(gui.add_text("eigenvalues of B", "", hint=hint), "B_spectrum")
            self.B_angle = self._on(gui.add_slider("angle of B (°)", -90.0, 90.0, 1.0, 0.0), "B_angle")

    def _view(self) -> None:
        gui = self.gui
        with gui.add_folder("Look", expand_by_default=False):
            self.colour = self._on(gui.add_dropdown("colour by", COLOURINGS), "colour")
            self.size = self._on(gui.add_slider("token size", 0.3, 3.0, 0.1, 1.0), "size")
            self.solid = self._on(gui.add_checkbox("solid ball", False), "solid")
            self.projection = self._on(gui.add_dropdown("projection (d > 3)", PROJECTIONS), "projection")
            self.axes = self._on(gui.add_text("axes (d > 3)", "1, 2, 3"), "axes")

    def _files(self) -> None:
        gui = self.gui
        with gui.add_folder("Files", expand_by_default=False):
            self.name = gui.add_text("name", "run-1", hint="Of what is saved next.")
            for label, what, icon in (
                ("Save this run", "save run", Icon.DEVICE_FLOPPY),
                ("Save figure", "save figure", Icon.PHOTO),
                ("Save animation", "save animation", Icon.MOVIE),
            ):
                self._button(label, what, icon)
            self.job = gui.add_progress_bar(0.0, visible=False)
            self.job_text = gui.add_html("", visible=False)
            self.cancel = self._button("Cancel saving", "cancel", Icon.X)
            self.cancel.visible = False
            self.path = gui.add_text("open", "", hint="Path of a stored run or of a TOML file.")
            self._button("Open", "open", Icon.FOLDER_OPEN)

    # -- curves

    def _curves_panel(self) -> None:
        gui = self.gui
        panel = gui.add_panel()
        with panel.add_tab("Curves", Icon.CHART_LINE):
            self.phase = gui.add_html("")
            self.titles, self.charts = {}, {}
            for name, height in (("distance", 115), ("angles", 100), ("order", 95), ("clusters", 80)):
                self.titles[name] = gui.add_html("")
                self.charts[name] = _chart(gui, CHART_LINES[name], height)
            self.notes = gui.add_html("")
        panel.dock_left()
        panel.set_width(370)
        self._shown: dict[str, Any] = {}

    def show_curves(self, stage: Stage, curves: dict[str, np.ndarray], log: bool) -> None:
        """Draw the curves up to the frame shown.

        Args:
            stage: what stays the same during the run.
            curves: name → values, (times,), with their times `t`.
            log: whether the time axis is logarithmic.
        """
        keep = np.unique(np.linspace(0, len(curves["t"]) - 1, MAX_CURVE_POINTS).astype(int))
        c = {name: values[keep] for name, values in curves.items()}
        if log:  # there is no t = 0 on a logarithmic axis
            c = {name: values[c["t"] > 0] for name, values in c.items()}
        t = c["t"]
        if len(t) < 2:
            t = np.array([0.0, 1.0]) + (log and 1)
            c = {name: np.full(2, np.nan) for name in c}
        about = stage.kind in ("fixed", "algebraic", "rotating")
        if about:
            title = "angle to the plane E" if stage.kind == "rotating" else "W2 to Π♯ρ0"
            predicted = _prediction(t, c["distance"], stage.rate)
            self._draw("distance", f"log10 {title}", t, (_log10(c["distance"]), _log10(predicted)), log)
            angles = (_log10(c["to_limit"]), _log10(c["to_end"]))
            self._draw("angles", "log10 angle to the eigenspace", t, angles, log)
        for name in ("distance", "angles"):
            self._update(self.charts[name], "visible", about)
            self._update(self.titles[name], "visible", about)
        self._draw("order", "", t, (c["order"], c["energy"]), log, top=1.05)
        top = 1.1 * float(np.max(c["clusters"], initial=4, where=np.isfinite(c["clusters"])))
        self._draw("clusters", "number of clusters", t, (c["clusters"],), log, top=top)

    def _draw(
        self,
        name: str,
        title: str,
        t: np.ndarray,
        ys: tuple[np.ndarray, ...],
        log: bool,
        top: float | None = None,
    ) -> None:
        chart = self.charts[name]
        self._update(self.titles[name], "content", _title(title, CHART_LINES[name], ys))
        y = {} if top is None else {"range": (0.0, top)}
        self._update(chart, "scales", {"x": {"time": False, "distr": 3 if log else 1}, "y": y})
        chart.data = (t, *ys)

    def _update(self, handle: Any, name: str, value: Any) -> None:
        """Set a property of the page only where it changes."""
        key = f"{id(handle)}.{name}"
        if self._shown.get(key) != value:
            self._shown[key] = value
            setattr(handle, name, value)

    # -- what is shown

    def show_setup(self, setup: Setup, about: str) -> None:
        """Set the controls to a setup."""
        for name in ("model", "n", "d", "law", "number", "key", "stop", "step", "V_angle", "B_angle", "turn"):
            getattr(self, name).value = getattr(setup, name)
        for name in ("V_spectrum", "B_spectrum"):
            getattr(self, name).value = ", ".join(f"{v:g}" for v in getattr(setup, name))
        position = INFINITE_LOG_BETA if np.isinf(setup.beta) else float(np.log10(setup.beta))
        self.beta.value = round(20 * position) / 20
        self.log.value = TIME_SCALES[setup.log]
        warm = setup.model in WARM
        shown = f"{setup.beta:.3g}" if np.isfinite(setup.beta) else "∞ (hardmax)"
        self._update(self.beta, "label", f"β = {shown}")
        self._update(self.beta, "visible", warm)
        self._update(self.step, "visible", setup.model == "layers")
        law = LAWS[setup.law]
        self._update(self.number, "visible", bool(law.number))
        self._update(self.number, "label", law.number or "–")
        for handle in (self.projection, self.axes):
            self._update(handle, "visible", setup.d > 3)
        self._update(self.about, "content", about)

    def show_time(self, at: int, total: int, t: float) -> None:
        """Set the time slider.

        Args:
            at: index of the frame shown.
            total: how many frames the run has.
            t: time of the frame shown.
        """
        self._update(self.time, "max", max(1, total - 1))
        self._update(self.time, "label", f"t = {t:.4g}")
        self.time.value = at

    def show_play(self, playing: bool) -> None:
        """Name the button after what it does."""
        self._update(self.play, "label", "Pause" if playing else "Play")
        self._update(self.play, "icon", Icon.PLAYER_PAUSE if playing else Icon.PLAYER_PLAY)

    def show_status(self, share: float, sentence: str) -> None:
        """How much is computed, in words."""
        self.computed.value = float(round(100 * share))
        self._update(self.status, "content", _small(sentence))

    def show_phase(self, phase: PhaseLabel, t: float | None) -> None:
        """The phase's name, large, and its sentence."""
        shade = PHASE_COLOURS.get(phase.name, "#555555")
        clock = "" if t is None else f"t = {t:.4g}"
        self._update(
            self.phase,
            "content",
            '<div style="padding:.6em .8em .2em .8em">'
            '<div style="display:flex;justify-content:space-between;align-items:baseline">'
            f'<span style="background:{shade};color:white;border-radius:.4em;padding:.15em .6em;'
            f'font-weight:600;font-size:1.15em">{html.escape(phase.name)}</span>'
            f'<span style="font-variant-numeric:tabular-nums;font-size:1.1em">{clock}</span></div>'
            f'<div style="margin-top:.4em;min-height:2.6em;font-size:.95em">{html.escape(phase.words)}</div>'
            "</div>",
        )

    def show_notes(self, stage: Stage, legend: str) -> None:
        """What the colours mean and how things are measured."""
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in stage.notes)
        lines = ""
        if stage.kind in ("fixed", "algebraic", "rotating"):
            of_D, of_V = (swatch(colour) for colour in EIGENSPACE_COLOURS)
            lines = f"Dominant eigenspaces: {of_D} of V Bᵀ (E), {of_V} of V<br>"
        text = f'<div style="padding:0 .8em;font-size:.85em">{lines}Tokens: {legend}'
        text += '<ul style="padding-left:1.2em;'
        self._update(self.notes, "content", text + f'margin:.4em 0;color:#777">{notes}</ul></div>')

    def show_job(self, text: str, share: float | None) -> None:
        """The progress of saving; None when there is nothing under way."""
        for handle in (self.job, self.job_text, self.cancel):
            self._update(handle, "visible", share is not None)
        self.job.value = float(round(100 * (share or 0.0)))
        self._update(self.job_text, "content", _small(text))


def beta_of(value: float) -> float:
    """What a position of the slider means: two digits of 10^value, or infinity beyond the last number."""
    return np.inf if value > LARGEST_LOG_BETA + 1e-9 else float(f"{10**value:.2g}")


def numbers(text: str, name: str) -> tuple[float, ...]:
    """Numbers separated by commas."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"`{name}` must be numbers separated by commas, but was {text!r}") from None


def _prediction(t: np.ndarray, distance: np.ndarray, rate: float | None) -> np.ndarray:
    """The first distance carried on at the predicted rate, as far down as the curve itself goes."""
    if rate is None or not np.isfinite(rate):
        return np.full(len(t), np.nan)
    line = distance[0] * np.exp(-rate * (t - t[0]))
    return np.where(line > 0.5 * np.min(distance), line, np.nan)


def _small(sentence: str) -> str:
    return f'<div style="padding:0 .8em .3em .8em;font-size:.85em;color:#777">{html.escape(sentence)}</div>'


def _log10(values: np.ndarray) -> np.ndarray:
    """The logarithm, above the floor where distances are rounding."""
    return np.log10(np.where(values > SMALLEST_PLOTTED, values, np.nan))


def _title(title: str, lines: tuple[tuple[str, str], ...], ys: tuple[np.ndarray, ...]) -> str:
    """What a chart shows, and the colours of those lines that have a value."""
    shown = [
        f"{swatch(colour)} {label}"
        for (label, colour), y in zip(lines, ys, strict=True)
        if label and np.any(np.isfinite(y))
    ]
    text = " &nbsp; ".join([f"<b>{title}</b>"] * bool(title) + shown)
    return f'<div style="padding:.3em .8em 0 .8em;font-size:.85em">{text}</div>'


def _chart(gui: Any, lines: tuple[tuple[str, str], ...], height: int) -> Any:
    series: list[dict[str, Any]] = [{"label": "t"}]
    for label, colour in lines:
        dash = {"dash": (6, 4)} if label.startswith("predicted") else {}
        series.append({"label": label, "stroke": colour, "width": 2, "points": {"show": False}} | dash)
    data = (np.array([0.0, 1.0]), *(np.array([np.nan, np.nan]) for _ in lines))
    return gui.add_uplot(
        data,
        tuple(series),
        height=height,
        scales={"x": {"time": False}, "y": {}},
        axes=({"size": 26} | AXIS_STYLE, {"size": 40, "space": 18} | AXIS_STYLE),
        legend={"show": False},
        cursor={"show": False},
        padding=(6, 12, 0, 0),
    )
