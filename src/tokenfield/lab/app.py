"""The app: one loop that handles what people ask for, lets the session tick, and shows what is new.

Everything happens in the thread that called `serve`; viser's own threads only put events into a queue. So
there are no locks, and Ctrl-C ends it at once.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenfield.config.reading import Config
from tokenfield.errors import InputError, RunError, as_whole, require
from tokenfield.lab import job
from tokenfield.lab.colouring import COLOURINGS, Colouring, colouring
from tokenfield.lab.panel import TIME_SCALES, Panel, beta_of, numbers
from tokenfield.lab.presets import PRESETS
from tokenfield.lab.scene import PROJECTIONS, Scene, parse_axes
from tokenfield.lab.server import guarded_server
from tokenfield.lab.session import Message, Session
from tokenfield.lab.setup import LAWS, Setup, fitted
from tokenfield.lab.source import KINDS_OF_SOURCE, located, source, without_values

#: Seconds between two looks at the events, two pictures, two drawings of the curves.
POLL_SECONDS, FRAME_SECONDS, CURVES_SECONDS = 0.02, 0.1, 0.4
#: Seconds that the server has to stop.
STOP_TIMEOUT = 0.3
#: Seconds between two changes that begin a run each: a slider that is dragged does not at every notch.
MIN_SECONDS_BETWEEN_RUNS = 0.25


class Lab:
    """The lab: a server, a session, a scene and a panel.

    Args:
        host: name or address to listen at.
        port: port to listen at; 0: any that is free.
        out: directory for what is saved from the page.
        say: told what is not for the page.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 8080,
        out: Path = Path("out/lab"),
        say: Callable[[str], None] = lambda sentence: None,
    ):
        require(isinstance(host, str) and bool(host), "host", "be a host name or address", repr(host))
        as_whole(port, "port", 0)
        require(port < 65536, "port", "be at most 65535", port)
        self.out, self.say, self.events = out, say, queue.SimpleQueue()
        self.session = Session()
        try:
            self.server, self.url = guarded_server(host, port)
        except BaseException:
            self.session.close()
            raise
        #: what a page may open: the folder for what is saved, and the one the lab was started in
        self.folders = (out.resolve(), Path.cwd())
        self.setup, self.preset = Setup(), next(iter(PRESETS))
        self.colour, self.job = COLOURINGS[0], None
        #: when a changed setup becomes a run, and when one did the last time
        self._run_due_at: float | None = None
        self._last_run_at = -MIN_SECONDS_BETWEEN_RUNS
        self._stage: Any = None
        self._frame: Any = None
        self._colouring: Colouring | None = None
        self._drawn_at = self._curves_drawn_at = 0.0
        self._curves_frame: Any = None
        #: pictures pushed to the page so far
        self.pictures = 0
        self.scene = Scene(self.server)
        self.panel = Panel(self.server, lambda what, value: self.events.put((what, value)))
        self.server.on_client_connect(lambda _: self.events.put(("tabs", None)))
        self.server.on_client_disconnect(lambda _: self.events.put(("tabs", None)))
        self.session.watched = False
        self._saved_count = 1
        #: whether what is shown is a file that a page asked for
        self._opened_by_page = False

    # -- the loop

    def begin(self, path: Path | None = None) -> None:
        """Take up the first preset, or what the path holds; a bad path is refused here."""
        self._take_preset(self.preset, play=False)
        if path is not None:
            self._show_source(source(path), str(path), play=True)

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Go on until told otherwise or Ctrl-C."""
        while not until():
            self.poll()

    def poll(self) -> None:
        """One round: events, clock, page."""
        with contextlib.suppress(queue.Empty):
            event = self.events.get(timeout=POLL_SECONDS)
            while True:
                self._handle(*event)
                event = self.events.get_nowait()
        now = time.monotonic()
        if self._run_due_at is not None and now >= self._run_due_at:
            self._run_due_at, self._last_run_at = None, now
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
        stop.join(STOP_TIMEOUT)

    # -- events

    def _handle(self, what: str, value: Any) -> None:
        try:
            self._dispatch(what, value)
        except (InputError, RunError, OSError) as error:
            self._notify(Message("error", str(error)))
        except Exception as error:  # an event must never end the lab
            self._notify(Message("error", f"{type(error).__name__}: {error}"))

    def _dispatch(self, what: str, value: Any) -> None:
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
                self._change_view(what, value)
            case "save run" | "save figure" | "save animation":
                self._save(what)
            case "cancel":
                if self.job is not None:
                    self.job.cancel()
            case "open":
                self._open(self.panel.path.value)
            case _:
                self._change(what, value)

    def _take_preset(self, name: str, play: bool) -> None:
        require(name in PRESETS, "phenomenon", f"be one of {', '.join(PRESETS)}", repr(name))
        self.preset, self.setup, self._opened_by_page = name, PRESETS[name].setup, False
        self.panel.show_setup(self.setup, PRESETS[name].about)
        self._run_due_at = None
        self.session.start(self.setup.config(), play)

    def _change(self, field: str, value: Any) -> None:
        """Another value of one control: a new run, unless another has just begun: then a little later."""
        try:
            changed = self._changed(field, value)
            changed.config()
            # every object is built, of few tokens, before the run at hand is given up
            replace(changed, n=min(changed.n, 8)).config().arguments()
        except Exception:
            self.panel.show_setup(self.setup, PRESETS[self.preset].about)
            raise
        self.setup, self._opened_by_page = changed, False
        self.panel.show_setup(changed, PRESETS[self.preset].about)
        self._run_due_at = self._last_run_at + MIN_SECONDS_BETWEEN_RUNS

    def _changed(self, field: str, value: Any) -> Setup:
        if field == "beta":
            value = beta_of(value)
        elif field == "log":
            require(value in TIME_SCALES, "time scale", f"be one of {', '.join(TIME_SCALES)}", repr(value))
            value = value == TIME_SCALES[1]
        elif field == "d":
            as_whole(value, "dimension", 2)
        elif field.endswith("spectrum"):
            value = numbers(value, f"eigenvalues of {field[0]}")
        changed = replace(self.setup, **{field: value})
        if field == "law":
            law = LAWS[value]
            changed = replace(changed, number=law.good, d=law.dimension or changed.d)
        if changed.d != self.setup.d and 2 <= changed.d <= 64:
            changed = replace(
                changed,
                V_spectrum=fitted(changed.V_spectrum, changed.d),
                B_spectrum=fitted(changed.B_spectrum, changed.d),
            )
        return changed

    def _change_view(self, what: str, value: Any) -> None:
        scene = self.scene
        if what == "colour":
            require(value in COLOURINGS, "colour by", f"be one of {', '.join(COLOURINGS)}", repr(value))
            self.colour = value
        elif what == "size":
            require(0 < value < 100, "token size", "be positive and below 100", value)
            scene.size = float(value)
        else:
            if what == "projection":
                require(
                    value in PROJECTIONS, "projection", f"be one of {', '.join(PROJECTIONS)}", repr(value)
                )
            if what == "axes" and self._stage is not None:
                parse_axes(value, max(self._stage.d, 3))
            setattr(scene, {"axes": "axes_text"}.get(what, what), value)
            if self._stage is not None:
                scene.redraw()
        self._frame = None

    def _open(self, where: str) -> None:
        """Open what a page asks for; what is wrong with a file is told where the lab runs, not there."""
        path = located(where, self.folders)
        try:
            found = source(path)
        except (InputError, OSError) as error:
            self.say(f"lab: {error}")
            raise InputError(
                f"`path` must {KINDS_OF_SOURCE}, but {where.strip()!r} is none;"
                " the terminal of the lab says why"
            ) from None
        self._show_source(found, where, play=True)
        self._opened_by_page = True

    def _show_source(self, found: Path | Config, where: str, play: bool) -> None:
        if isinstance(found, Path):
            self.session.open(found, play)
        else:
            self.session.start(found, play)
        self._run_due_at = None
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
        self._notify(Message("error" if self.job.failed else "success", self.job.result))
        self.job = None
        self.panel.show_job("", None)
        self._saved_count += 1
        self.panel.name.value = f"run-{self._saved_count}"

    # -- the page

    def _notify(self, message: Message) -> None:
        failed = message.kind == "error"
        for client in self.server.get_clients().values():
            client.add_notification(
                "That did not work" if failed else "Done",
                message.text,
                color="red" if failed else "green",
                auto_close_seconds=None if failed else 15.0,
            )

    def _show(self, now: float) -> None:
        session, panel = self.session, self.panel
        while session.messages:
            message = session.messages.popleft()
            failed = self._opened_by_page and message.kind == "error"
            self._notify(message._replace(text=without_values(message.text)) if failed else message)
        if now - self._drawn_at < FRAME_SECONDS and session.stage is self._stage:
            return
        panel.show_play(session.playing)
        panel.show_status(len(session.frames) / max(1, session.total), self._status())
        stage, frame = session.stage, session.frame
        if stage is None or frame is None:
            panel.show_phase(session.phase(), None)
            return
        if stage is not self._stage:
            # the picture first: the page takes a while to draw the curves
            self._stage, self._frame, self._curves_drawn_at = stage, None, now
            self.scene.set(stage)
        if frame is not self._frame:
            self._frame, self._drawn_at = frame, now
            colours = colouring(self.colour, stage, frame)
            self.scene.show(frame, colours)
            self.pictures += 1
            panel.show_time(session.at, session.total, frame.t)
            panel.show_phase(session.phase(), frame.t)
            panel.show_notes(stage, colours.legend)
        if now - self._curves_drawn_at >= CURVES_SECONDS and frame is not self._curves_frame:
            self._curves_drawn_at, self._curves_frame = now, frame
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


def serve(
    path: Path | None,
    host: str,
    port: int,
    out: Path,
    ready: Callable[[str], None] = lambda url: None,
    say: Callable[[str], None] = lambda sentence: None,
) -> None:
    """Open the lab and stay until Ctrl-C.

    Args:
        path: a stored run, a TOML file or a cell of a sweep to begin with; None: the first preset.
        host: name or address to listen at.
        port: port to listen at; 0: any that is free.
        out: directory for what is saved from the page.
        ready: called with the address once the page is there.
        say: told what is not for the page.
    """
    lab = Lab(host, port, out, say)
    try:
        lab.begin(path)
        ready(lab.url)
        lab.run()
    except KeyboardInterrupt:
        pass  # how one leaves
    finally:
        lab.close()
