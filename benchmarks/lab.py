"""How often the lab moves and how soon it answers: 8,000 shown tokens of many, rendered by software.

    python benchmarks/lab.py [--tokens 100000] [--seconds 20] [--changes 5]

Plays a preset with that many tokens, as a person sets it up in the page, on the circle and on the sphere. It
counts the pictures that reach the page (messages with new points, seen by the page's own websocket), each of
a new time of the run, and those that the page draws. Then it moves the β slider while the run is being
computed, also with ten times the tokens, and reports the seconds until the page shows the first picture
of the new run. Needs playwright and Chromium.
"""

import argparse
import contextlib
import os
import shutil
import threading
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from playwright.sync_api import Page, sync_playwright

from tokenfield.lab.app import Lab

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
]
#: Counts the pictures that the browser draws: it clears the canvas before each. (A loop of animation frames
#: would make it draw sixty times a second for nothing.)
COUNT = """window.drawn = 0;
const clear = WebGL2RenderingContext.prototype.clear;
WebGL2RenderingContext.prototype.clear = function (mask) {
  window.drawn += 1;
  return clear.call(this, mask);
};
"""
#: Notes when a key reached the browser, and when it had painted a clock that went back, to a new run: asking
#: from outside waits for the page each time.
NOTE = """const clock = () => [...document.querySelectorAll('span')].map(s => s.textContent)
  .filter(text => text.startsWith('t = ')).map(text => parseFloat(text.slice(4)))[0];
addEventListener('keydown', event => {
  Object.assign(window, {pressed: event.timeStamp, before: clock(), found: false, seen: 0});
}, true);
new MutationObserver(() => {
  if (window.found !== false || !(clock() < window.before)) return;
  window.found = true;
  requestAnimationFrame(() => setTimeout(() => { window.seen = performance.now(); }));
}).observe(document, {subtree: true, childList: true, characterData: true});
"""


class Tab(threading.Thread):
    """A browser that watches, in a thread of its own, because the lab has the main one."""

    def __init__(self, url: str):
        super().__init__(daemon=True)
        self.url, self.received, self.drawn = url, [], 0
        self.answers: list[float] = []
        self.open, self.done, self.change = threading.Event(), threading.Event(), threading.Event()

    def run(self) -> None:
        """Count what comes and what is drawn, and move the slider when asked, until told to stop."""
        with sync_playwright() as playwright:
            chromium = shutil.which("chromium") or shutil.which("google-chrome")
            browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            page.set_default_timeout(120_000)
            page.on("websocket", lambda s: s.on("framereceived", self._count))
            page.add_init_script(COUNT + NOTE)
            page.goto(self.url)
            self.open.set()
            while not self.done.is_set():
                page.wait_for_timeout(100)
                self.drawn = page.evaluate("window.drawn")
                if self.change.is_set():
                    self.answers.append(self._move_beta(page))
                    self.change.clear()
            browser.close()

    def _count(self, payload: bytes | str) -> None:
        if len(payload) > 50_000:  # 8,000 points and their colours
            self.received.append(time.monotonic())

    def _move_beta(self, page: Page) -> float:
        """Press a key on the slider; the seconds until the page shows the new run."""
        slider = page.get_by_role("slider").locator("visible=true").nth(2)
        slider.press("ArrowLeft")
        page.wait_for_function("window.seen > 0")
        return page.evaluate("(window.seen - window.pressed) / 1000")


class Rates(NamedTuple):
    """Per second: pictures sent, received, pictures drawn, simulated time, and processor seconds of the
    workers, of the lab itself and of the browser.
    """

    sent: float
    received: float
    drawn: float
    simulated: float
    workers: float
    server: float
    browser: float


def processor_seconds() -> np.ndarray:
    """So far of the workers, of this process and of the browser: what others leave of the machine varies."""
    parent, used, name = {}, {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            name[int(folder.name)] = (folder / "cmdline").read_text()
            parent[int(folder.name)] = int(fields[1])
            used[int(folder.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    found = {"spawn_main": 0.0, "": 0.0, "chrom": 0.0}
    for process, seconds in used.items():
        if process == os.getpid():
            found[""] += seconds
        elif _descends(process, parent):
            kind = next((k for k in found if k and k in name[process]), None)
            found |= {} if kind is None else {kind: found[kind] + seconds}
    return np.array(list(found.values()))


def _descends(process: int, parent: dict[int, int]) -> bool:
    while process in parent and process != os.getpid():
        process = parent[process]
    return process == os.getpid()


class Watched:
    """A lab with one tab, playing a preset with so many tokens."""

    def __init__(self, d: int, tokens: int):
        self.tokens = tokens
        self.lab = Lab(port=0, out=Path("out/lab"))
        self.tab = Tab(self.lab.url)
        self.tab.start()
        self.lab.run(self.tab.open.is_set)
        preset = "the same on the circle" if d == 2 else "concentration, then escape"
        for event in (("preset", preset), ("n", tokens)):
            self.lab.events.put(event)

    def rates(self, seconds: float) -> Rates:
        """Once the first steps are compiled."""
        lab, tab = self.lab, self.tab
        lab.run(lambda: lab.session.stage is not None and lab.session.stage.n == self.tokens)
        lab.run(lambda: len(lab.session.frames) > 20)
        began, sent, received, drawn = time.monotonic(), lab.pictures, len(tab.received), tab.drawn
        t, used = lab.session.curves()["t"][-1], processor_seconds()
        lab.run(lambda: time.monotonic() - began > seconds)
        span = time.monotonic() - began
        simulated = lab.session.curves()["t"][-1] - t
        counts = (lab.pictures - sent, len(tab.received) - received, tab.drawn - drawn, simulated)
        return Rates(*(float(v) / span for v in (*counts, *(processor_seconds() - used))))

    def answers(self, changes: int) -> list[float]:
        """Seconds until a change of β is seen, while a run is being computed."""
        lab, tab = self.lab, self.tab
        for _ in range(changes):
            lab.run(lambda: lab.session.stage is not None and lab.session.stage.n == self.tokens)
            lab.run(lambda: lab.session.frame is not None and lab.session.frame.t > 0)
            rest = time.monotonic() + 1.0
            lab.run(lambda rest=rest: time.monotonic() > rest)
            tab.change.set()
            lab.run(lambda: not tab.change.is_set())
        return tab.answers

    def close(self) -> None:
        """Close the tab and the lab."""
        self.tab.done.set()
        self.tab.join(20)
        self.lab.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--changes", type=int, default=5)
    options = parser.parse_args()
    n = options.tokens
    print(f"8,000 tokens shown; {os.cpu_count()} cores, load before: {os.getloadavg()[0]:.1f}")
    print(
        "| tokens | d | pictures sent / s | received by the page / s | pictures drawn / s | t / s "
        "| cores busy: workers | lab | browser "
        "| change of β seen after (s): median, worst |"
    )
    print("|" + 10 * "---|")
    for tokens, d in ((n, 2), (n, 3), (10 * n, 3)):
        watched = Watched(d, tokens)
        try:
            rates = watched.rates(options.seconds) if tokens == n else None
            answers = sorted(watched.answers(options.changes))
        finally:
            watched.close()
        shown = " | ".join("–" * 7) if rates is None else " | ".join(f"{v:.2g}" for v in rates)
        middle = answers[len(answers) // 2]
        print(f"| {tokens} | {d} | {shown} | {middle:.2f}, {answers[-1]:.2f} |", flush=True)
    print(f"load after: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
