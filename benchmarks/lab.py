"""How often the lab moves: 8,000 shown tokens of a run of 10^5, on this machine, rendered by software.

    python benchmarks/lab.py [--tokens 100000] [--seconds 20]

Counts the pictures that reach the page (messages with new points, seen by the page's own websocket) while a
run plays, on the circle and on the sphere, and the frames that the page renders. Needs playwright and
Chromium.
"""

import argparse
import os
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

from playwright.sync_api import sync_playwright

from tokenfield.lab.app import Lab
from tokenfield.lab.presets import PRESETS

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
             "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]  # fmt: skip
#: Counts the frames that the browser draws.
COUNT = "() => { window.drawn = 0; const f = () => { window.drawn += 1; requestAnimationFrame(f); }; f(); }"


class Tab(threading.Thread):
    """A browser that watches, in a thread of its own, because the lab has the main one."""

    def __init__(self, url: str):
        super().__init__(daemon=True)
        self.url, self.received, self.drawn = url, [], 0
        self.open, self.done = threading.Event(), threading.Event()

    def run(self) -> None:
        """Count what comes and what is drawn until told to stop."""
        with sync_playwright() as playwright:
            chromium = shutil.which("chromium") or shutil.which("google-chrome")
            browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            page.on("websocket", lambda s: s.on("framereceived", self._count))
            page.goto(self.url)
            page.evaluate(COUNT)
            self.open.set()
            while not self.done.is_set():
                page.wait_for_timeout(100)
                self.drawn = page.evaluate("window.drawn")
            browser.close()

    def _count(self, payload: bytes | str) -> None:
        if len(payload) > 50_000:  # 8,000 points and their colours
            self.received.append(time.monotonic())


def measure(d: int, tokens: int, seconds: float) -> tuple[float, float, float]:
    """Pictures sent, received and frames drawn per second, once the first steps are compiled."""
    name = "the same on the circle" if d == 2 else "concentration, then escape"
    lab = Lab(port=0, out=Path("out/lab"))
    try:
        lab.setup = replace(PRESETS[name].setup, n=tokens, frames=1000)
        lab.session.start(lab.setup.config())
        tab = Tab(lab.url)
        tab.start()
        lab.run(tab.open.is_set)
        lab.run(lambda: len(lab.session.frames) > 20)
        began, sent, received, drawn = time.monotonic(), lab.pictures, len(tab.received), tab.drawn
        lab.run(lambda: time.monotonic() - began > seconds)
        span = time.monotonic() - began
        rates = (
            (lab.pictures - sent) / span,
            (len(tab.received) - received) / span,
            (tab.drawn - drawn) / span,
        )
        tab.done.set()
        tab.join(20)
        return rates
    finally:
        lab.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    print(
        f"{options.tokens} tokens, 8,000 shown; {os.cpu_count()} cores, load before: {os.getloadavg()[0]:.1f}"
    )
    print("| d | pictures sent / s | received by the page / s | frames drawn / s |")
    print("|---|---|---|---|")
    for d in (2, 3):
        sent, received, drawn = measure(d, options.tokens, options.seconds)
        print(f"| {d} | {sent:.1f} | {received:.1f} | {drawn:.1f} |", flush=True)
    print(f"load after: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
