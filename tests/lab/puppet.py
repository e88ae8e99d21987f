"""A worker whose strings the test holds: no process, it says what it is told to say."""

import numpy as np

from tokenfield.lab.frame import CURVES, Frame, Stage

STAGE = Stage(2, 2, np.full(2, 0.5), np.eye(2))


def frame(t):
    return Frame(t, np.eye(2), np.zeros(2), np.zeros(2, int), dict.fromkeys(CURVES, 1.0))


class Puppet:
    """A worker whose strings the test holds."""

    made: list = []  # noqa: RUF012

    def __init__(self):
        self.ready, self.alive, self.sent, self.said = True, True, [], []
        self.idle, self.held = True, False
        Puppet.made.append(self)

    def send(self, *message):
        self.sent.append(message)
        self.idle = self.idle and message[0] in ("ahead", "rest")

    def answers(self):
        said, self.said = self.said, []
        return said

    def hold(self, on):
        self.held = on

    def kill(self):
        self.alive = False

    @property
    def task(self):
        return [m for m in self.sent if m[0] != "ahead"][-1][1]

    @property
    def ahead(self):
        return self.sent[-1][-1]

    def begin(self, total=300):
        self.said += [("taken", self.task), ("begin", self.task, STAGE, np.arange(total) / 10)]

    def make(self, first, last):
        self.said += [("frame", self.task, frame(k / 10)) for k in range(first, last)]
