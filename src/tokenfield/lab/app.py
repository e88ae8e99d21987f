"""The app: one loop that hears what people ask for, lets the session tick, and shows what is new.

Everything happens in the thread that called `serve`; viser's own threads only put wishes into a queue. So
there are no locks, and Ctrl-C ends it at once.
"""

import contextlib
import io
import ipaddress
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import viser

from tokenfield.errors import InputError, RunError, as_whole, require
from tokenfield.lab import job
from tokenfield.lab.colouring import CHOICES, Colouring, colouring
from tokenfield.lab.panel import SCALES, Panel, beta_of, numbers
from tokenfield.lab.presets import PRESETS
from tokenfield.lab.scene import PROJECTIONS, Scene, parse_axes
from tokenfield.lab.session import Message, Session
from tokenfield.lab.setup import LAWS, Setup, fitted
from tokenfield.lab.source import source

#: Seconds between two looks, two pictures, two drawings of the curves.
LOOK, PICTURE, CURVE = 0.02, 0.1, 0.4
#: Seconds that tabs have to take leave.
GOODBYE = 0.3
#: Seconds between two changes that begin a run each: a slider that is dragged does not at every notch.
BETWEEN = 0.25


class Lab:
    """The lab: a server, a session, a scene and a panel."""

    def __init__(self, host: str = "127.0.0.1", port: int = 8080, out: Path = Path("out/lab")):
        require(isinstance(host, str) and bool(host), "host", "be a host name or address", repr(host))
        as_whole(port, "port", 0)
        require(port < 65536, "port", "be at most 65535", port)
        self.out, self.wishes = out, queue.SimpleQueue()
        self.session = Session()
        try:
            self.server = _server(host, port)
        except BaseException:
            self.session.close()
            raise
        self.url = f"http://{'localhost' if host in ('0.0.0.0', '::') else host}:{self.server.get_port()}"
        self.setup, self.preset = Setup(), next(iter(PRESETS))
        self.colour, self.job = CHOICES[0], None
        #: when a changed setup becomes a run, and when one did the last time
        self._due: float | None = None
        self._begun = -BETWEEN
        self._stage: Any = None
        self._frame: Any = None
        self._colouring: Colouring | None = None
        self._picture = self._curve = 0.0
        self._curves_of: Any = None
        #: pictures pushed to the page so far
        self.pictures = 0
        self.scene = Scene(self.server)
        self.panel = Panel(self.server, lambda what, value: self.wishes.put((what, value)))
        self.server.on_client_connect(lambda _: self.wishes.put(("tabs", None)))
        self.server.on_client_disconnect(lambda _: self.wishes.put(("tabs", None)))
        self.session.watched = False
        self._name = 1

    # -- the loop

    def begin(self, path: Path | None = None) -> None:
        """Take up the first preset, or what the path holds; a bad path is refused here."""
        self._take_preset(self.preset, play=False)
        if path is not None:
            self._open(str(path), play=True)

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Go on until told otherwise or Ctrl-C."""
        while not until():
            self.turn()

    def turn(self) -> None:
        """One round: wishes, clock, page."""
        with contextlib.suppress(queue.Empty):
            wish = self.wishes.get(timeout=LOOK)
            while True:
                self._hear(*wish)
                wish = self.wishes.get_nowait()
        now = time.monotonic()
        if self._due is not None and now >= self._due:
            self._due, self._begun = None, now
            self.session.start(self.setup.config(), play=True)
        self.session.tick(now)
        self._tick_job()
        self._show(now)

    def close(self) -> None:
        """End everything."""
        self.session.close()
        if self.job is not None:
            self.job.cancel()
        # a tab that is open takes seconds to say goodbye
        stop = threading.Thread(target=self.server.stop, daemon=True)
        stop.start()
        stop.join(GOODBYE)

    # -- wishes

    def _hear(self, what: str, value: Any) -> None:
        try:
            self._do(what, value)
        except (InputError, RunError, OSError) as error:
            self._say(Message("trouble", str(error)))
        except Exception as error:  # a wish must never end the lab
            self._say(Message("trouble", f"{type(error).__name__}: {error}"))

    def _do(self, what: str, value: Any) -> None:
        session = self.session
        match what:
            case "tabs":
                session.watched = bool(self.server.get_clients())
            case "play":
                session.pause() if session.playing else session.play()
            case "Step":
                session.step()
            case "Restart":
                session.restart()
            case "Stop computing":
                session.cancel()
            case "scrub":
                session.scrub(value)
            case "speed":
                session.set_speed(value)
            case "preset":
                self._take_preset(value, play=True)
            case "colour" | "size" | "solid" | "projection" | "axes":
                self._look(what, value)
            case "save run" | "save figure" | "save animation":
                self._save(what)
            case "cancel":
                if self.job is not None:
                    self.job.cancel()
            case "open":
                self._open(self.panel.path.value, play=True)
            case _:
                self._change(what, value)

    def _take_preset(self, name: str, play: bool) -> None:
        require(name in PRESETS, "phenomenon", f"be one of {', '.join(PRESETS)}", repr(name))
        self.preset, self.setup = name, PRESETS[name].setup
        self.panel.show_setup(self.setup, PRESETS[name].about)
        self._due = None
        self.session.start(self.setup.config(), play)

    def _change(self, field: str, value: Any) -> None:
        """Another value of one control: a new run, as soon as the controls rest."""
        try:
            changed = self._changed(field, value)
            changed.config()
            # every object is built, of few tokens, before the run at hand is given up
            replace(changed, n=min(changed.n, 8)).config().arguments()
        except Exception:
            self.panel.show_setup(self.setup, PRESETS[self.preset].about)
            raise
        self.setup = changed
        self.panel.show_setup(changed, PRESETS[self.preset].about)
        self._due = self._begun + BETWEEN

    def _changed(self, field: str, value: Any) -> Setup:
        if field == "beta":
            value = beta_of(value)
        elif field == "log":
            require(value in SCALES, "time scale", f"be one of {', '.join(SCALES)}", repr(value))
            value = value == SCALES[1]
        elif field == "d":
            as_whole(value, "dimension", 2)
        elif field.endswith("spectrum"):
            value = numbers(value, f"eigenvalues of {field[0]}")
        changed = replace(self.setup, **{field: value})
        if field == "law":
            law = LAWS[value]
            changed = replace(changed, number=law.good, d=law.dimension or changed.d)
        if changed.d != self.setup.d and 2 <= changed.d <= 64:
            changed = replace(changed, V_spectrum=fitted(changed.V_spectrum, changed.d),
                              B_spectrum=fitted(changed.B_spectrum, changed.d))  # fmt: skip
        return changed

    def _look(self, what: str, value: Any) -> None:
        scene = self.scene
        if what == "colour":
            require(value in CHOICES, "colour by", f"be one of {', '.join(CHOICES)}", repr(value))
            self.colour = value
        elif what == "size":
            require(0 < value < 100, "token size", "be positive and below 100", value)
            scene.size = float(value)
        else:
            if what == "projection":
                require(value in PROJECTIONS, "projection", f"be one of {', '.join(PROJECTIONS)}",
                        repr(value))  # fmt: skip
            if what == "axes" and self._stage is not None:
                parse_axes(value, max(self._stage.d, 3))
            setattr(scene, {"axes": "axes_text"}.get(what, what), value)
            if self._stage is not None:
                scene.redraw()
        self._frame = None

    def _open(self, where: str, play: bool) -> None:
        found = source(where)
        if isinstance(found, Path):
            self.session.open(found, play)
        else:
            self.session.start(found, play)
        self._due = None
        self.panel.show_setup(
            self.setup, f"You are watching **{where.strip()}**. A change of a control leaves it."
        )

    def _save(self, what: str) -> None:
        require(self.job is None, "saving", "wait until the other is done", "busy")
        session, name = self.session, self.panel.name.value
        if what == "save run":
            require(session.config is not None, "run", "be a live one to be saved", "a stored one")
            assert session.config is not None
            path = job.new_path(self.out, name)
            job.new_path(self.out, name, ".toml")
            self.job = job.save_run(session.config, path)
            return
        stage, frame = session.stage, session.frame
        require(frame is not None, "figure", "have tokens to show", "empty")
        assert stage is not None and frame is not None
        colour = colouring(self.colour, stage, frame).values
        if what == "save figure":
            self.job = job.save_figure(stage, frame, colour, job.new_path(self.out, name, ".png"))
        else:
            self.job = job.save_animation(stage, session.frames, colour, job.new_path(self.out, name, ".gif"))

    def _tick_job(self) -> None:
        if self.job is None:
            return
        self.job.tick()
        if not self.job.result:
            self.panel.show_job(f"{self.job.title} …", self.job.share)
            return
        self._say(Message("trouble" if self.job.failed else "good", self.job.result))
        self.job = None
        self.panel.show_job("", None)
        self._name += 1
        self.panel.name.value = f"run-{self._name}"

    # -- the page

    def _say(self, message: Message) -> None:
        trouble = message.kind == "trouble"
        for client in self.server.get_clients().values():
            client.add_notification(
                "That did not work" if trouble else "Done", message.text, color="red" if trouble else "green",
                auto_close_seconds=None if trouble else 15.0,
            )  # fmt: skip

    def _show(self, now: float) -> None:
        session, panel = self.session, self.panel
        while session.messages:
            self._say(session.messages.popleft())
        if now - self._picture < PICTURE and session.stage is self._stage:
            return
        panel.show_play(session.playing)
        panel.show_status(len(session.frames) / max(1, session.total), self._status())
        stage, frame = session.stage, session.frame
        if stage is None or frame is None:
            panel.show_phase(session.phase(), None)
            return
        if stage is not self._stage:
            # the picture first: the page takes a while to draw the curves
            self._stage, self._frame, self._curve = stage, None, now
            self.scene.set(stage)
        if frame is not self._frame:
            self._frame, self._picture = frame, now
            colours = colouring(self.colour, stage, frame)
            self.scene.show(frame, colours)
            self.pictures += 1
            panel.show_time(session.at, session.total, frame.t)
            panel.show_phase(session.phase(), frame.t)
            panel.show_notes(stage, colours.legend)
        if now - self._curve >= CURVE and frame is not self._curves_of:
            self._curve, self._curves_of = now, frame
            panel.show_curves(stage, session.curves(), self._log())

    def _log(self) -> bool:
        """Whether the frames are spaced like a logarithm."""
        ts = self.session.ts
        return bool(len(ts) > 3 and ts[0] == 0 and ts[-1] > 100 * ts[len(ts) // 2])

    def _status(self) -> str:
        session = self.session
        made, total = len(session.frames), session.total
        if session.finished:
            return session.status
        if not session.watched:
            return "nobody watches: resting"
        if session.stage is None:
            return session.status
        if made <= 1:
            return "the first step: compiling takes seconds, many tokens take longer"
        reached = session.frames[-1].t
        if session.waiting:
            return f"computing: {made} of {total} frames, t = {reached:.4g}"
        return f"{made} of {total} frames computed, to t = {reached:.4g}"


def _server(host: str, port: int) -> viser.ViserServer:
    """viser's server, which would print a page of its own, and could ask others to share the page."""
    with contextlib.redirect_stdout(io.StringIO()):
        server = viser.ViserServer(host=host, port=port, label="tokenfield lab", verbose=False)
    server.request_share_url = lambda verbose=True: None  # type: ignore[method-assign]
    return server


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def serve(
    path: Path | None, host: str, port: int, out: Path, ready: Callable[[str], None] = lambda url: None
) -> None:
    """Open the lab and stay until Ctrl-C; `ready` is told the address once the page is there."""
    lab = Lab(host, port, out)
    try:
        lab.begin(path)
        ready(lab.url)
        lab.run()
    except KeyboardInterrupt:
        pass  # how one leaves
    finally:
        lab.close()
