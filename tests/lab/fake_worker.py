"""A worker without a process: it answers what the test puts into its outbox."""

import numpy as np

from tokenfield.lab.frame import CURVES, Frame, Stage

STAGE = Stage(2, 2, np.full(2, 0.5), np.eye(2))


def frame(t):
    return Frame(t, np.eye(2), np.zeros(2), np.zeros(2, int), dict.fromkeys(CURVES, 1.0))


class FakeWorker:
    """Stands for a `Worker`; `sent` keeps what it was sent, `outbox` what it answers next."""

    made: list = []  # noqa: RUF012

    def __init__(self):
        self.ready, self.alive, self.sent, self.outbox = True, True, [], []
        self.idle, self.suspended = True, False
        FakeWorker.made.append(self)

    def send(self, *message):
        self.sent.append(message)
        self.idle = self.idle and message[0] in ("limit", "prefetch")

    def answers(self):
        outbox, self.outbox = self.outbox, []
        return outbox

    def suspend(self):
        self.suspended = True

    def resume(self):
        self.suspended = False

    def kill(self):
        self.alive = False

    @property
    def task(self):
        return [m for m in self.sent if m[0] != "limit"][-1][1]

    @property
    def limit(self):
        return self.sent[-1][-1]

    def begin(self, total=300):
        self.outbox += [("started", self.task), ("begin", self.task, STAGE, np.arange(total) / 10)]

    def make(self, first, last):
        self.outbox += [("frame", self.task, frame(k / 10)) for k in range(first, last)]
