"""kill -9 of a worker, of the scheduler and of the driver, at random moments.

Twenty seeded trials with tokens, three with densities; TOKENFIELD_FAULT_TRIALS=200 asks for more.
"""

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter

import numpy as np
import psutil
import pytest

import tokenfield as tkf
from tests.sweeps import faults
from tests.sweeps.test_sweep import same
from tokenfield.sweeps import grid

pytestmark = pytest.mark.slow
TRIALS = int(os.environ.get("TOKENFIELD_FAULT_TRIALS", "20"))
CONTEXT = multiprocessing.get_context("forkserver")
#: Of each sweep the hashes of its cells, and the most of them in one task.
IDS = {name: {c.id for c in grid.declare(config).cells} for name, config in faults.SWEEPS.items()}
BATCH = {name: max(len(b.cells) for b in grid.declare(c).batches) for name, c in faults.SWEEPS.items()}
assert BATCH == {"tokens": 2, "density": 1}
PATIENCE = 120.0


def until(holds, what):
    """Wait for something, with patience."""
    stop = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < stop, f"waited in vain for {what}"
        time.sleep(0.01)


def start(target, *arguments):
    process = CONTEXT.Process(target=target, args=tuple(map(str, arguments)))
    process.start()
    return process


def kill(process):
    process.kill()
    process.join()


class Cluster:
    """A scheduler and two workers that can be killed and replaced."""

    def __init__(self, directory):
        self.directory, self.count = directory, 0
        self.workers = []
        self.begin()

    def begin(self):
        self.count += 1
        file = self.directory / f"address{self.count}"
        self.scheduler = start(faults.scheduler, file)
        until(file.exists, "the scheduler")
        self.address = file.read_text()
        self.workers = [start(faults.worker, self.address, self.directory / "w") for _ in range(2)]

    def replace_worker(self, k):
        kill(self.workers[k])
        self.workers[k] = start(faults.worker, self.address, self.directory / "w")

    def end(self):
        for process in (self.scheduler, *self.workers):
            kill(process)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    CONTEXT.set_forkserver_preload(["tests.sweeps.faults"])
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    yield made
    made.end()
    assert not [p for p in (made.scheduler, *made.workers) if p.is_alive()]


def finish(name, path, cluster, said):
    process = start(faults.driver, name, path, cluster.address, said)
    process.join(PATIENCE)
    assert process.exitcode == 0, said.read_text() if said.exists() else process.exitcode


@pytest.fixture(scope="module")
def whole(cluster, tmp_path_factory):
    """The undisturbed sweeps, each with how long it takes on warm workers; made when asked for."""
    made = {}

    def of(name):
        if name not in made:
            place = tmp_path_factory.mktemp("whole")
            finish(name, place / "first", cluster, place / "said")
            began = time.monotonic()
            finish(name, place / "second", cluster, place / "said")
            seconds = time.monotonic() - began
            data = tkf.open_sweep(place / "first")
            assert (data.state == 1).all()
            same(tkf.open_sweep(place / "second"), data)
            made[name] = data, seconds
        return made[name]

    return of


def landed(path):
    return {p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in (path / "cells").glob("*.cell")}


def computed(path):
    """How often each cell was begun, from the log."""
    lines = re.findall(r"computes batch \d+: (.*)", (path / "log.txt").read_text())
    return Counter(id for line in lines for id in line.split())


def check(name, path, whole, before, in_flight):
    """The same bits; what had landed is untouched; nothing half-written; little computed twice."""
    same(tkf.open_sweep(path), whole)
    assert before.items() <= landed(path).items()
    assert sorted(p.name for p in (path / "cells").iterdir()) == sorted(f"{id}.cell" for id in IDS[name])
    assert not list(path.glob(".*.draft"))
    counts = computed(path)
    assert set(counts) == IDS[name]
    assert sum(counts.values()) <= len(IDS[name]) + in_flight * BATCH[name]


def trial(name, seed, cluster, whole, tmp_path):
    """Kill one part of a running sweep at a random moment, and see what it ends with."""
    data, seconds = whole(name)
    rng = np.random.default_rng(seed)
    victim = ("worker", "scheduler", "driver")[seed % 3]
    path, said = tmp_path / "sweep", tmp_path / "said"
    running = start(faults.driver, name, path, cluster.address, said)
    if seed % 2:  # from the first cell on; else at any moment, also before there is a directory
        until(lambda: (path / "cells").is_dir() and len(landed(path)) > 0, "a first cell")
        time.sleep(rng.uniform(0, 0.7 * seconds))
    else:
        time.sleep(rng.uniform(0, 1.1 * seconds))
    if victim == "worker":
        cluster.replace_worker(int(rng.integers(2)))
        running.join(PATIENCE)
        assert running.exitcode == 0
        check(name, path, data, {}, 1)
        return
    if victim == "driver":
        kill(running)
    else:
        kill(cluster.scheduler)
        running.join(PATIENCE)
        # it may have been done already
        assert running.exitcode in (0, faults.SENTENCE), said.read_text()
        assert running.exitcode == 0 or "lost the scheduler" in said.read_text()
        for process in cluster.workers:
            kill(process)
        cluster.begin()
    before = landed(path) if path.exists() else {}
    finish(name, path, cluster, said)
    check(name, path, data, before, 4)  # two workers' batches at the kill, two more that they may have begun


@pytest.mark.parametrize("seed", range(TRIALS))
def test_kill_at_a_random_moment(seed, cluster, whole, tmp_path):
    trial("tokens", seed, cluster, whole, tmp_path)


@pytest.mark.parametrize("seed", [3, 5, 7] if TRIALS <= 20 else range(TRIALS // 4))
def test_kill_a_sweep_of_densities(seed, cluster, whole, tmp_path):
    """The same for cells of `density.solve`: worker, driver and scheduler, each after a first cell."""
    trial("density", seed, cluster, whole, tmp_path)


def offspring(process):
    return psutil.Process(process.pid).children(recursive=True)


@pytest.mark.parametrize("victim", ["worker", "driver"])
def test_kill_what_a_sweep_spawned_itself(victim, whole, tmp_path):
    """The same with the workers that `tokenfield sweep` starts on this machine."""
    path, said = tmp_path / "sweep", tmp_path / "said"
    running = CONTEXT.Process(target=faults.driver, args=("tokens", str(path), 2, str(said)))
    running.start()
    until(lambda: (path / "cells").is_dir() and len(landed(path)) > 2, "some cells")
    log = (path / "log.txt").read_text()
    pids = [int(pid) for pid in re.findall(r"pid (\d+) computes", log)]
    children = {child.pid for child in offspring(running)}
    assert set(pids) <= children
    os.kill(pids[-1] if victim == "worker" else running.pid, signal.SIGKILL)
    running.join(PATIENCE)
    assert running.exitcode == (0 if victim == "worker" else -signal.SIGKILL)
    until(lambda: not any(psutil.pid_exists(pid) for pid in children), "the workers to be gone")
    before = landed(path)
    if victim == "driver":
        assert json.loads((path / "manifest.json").read_text())["cells"]["done"] < len(IDS["tokens"])
        again = CONTEXT.Process(target=faults.driver, args=("tokens", str(path), 2, str(said)))
        again.start()
        again.join(PATIENCE)
        assert again.exitcode == 0
    check("tokens", path, whole("tokens")[0], before, 2)


def test_a_stopped_worker_is_replaced_and_does_not_outlive_the_sweep(whole, tmp_path):
    path, said = tmp_path / "sweep", tmp_path / "said"
    running = CONTEXT.Process(target=faults.impatient_driver, args=("tokens", str(path), 2, str(said)))
    running.start()
    until(lambda: (path / "cells").is_dir() and len(landed(path)) > 2, "some cells")
    pids = [int(pid) for pid in re.findall(r"pid (\d+) computes", (path / "log.txt").read_text())]
    os.kill(pids[-1], signal.SIGSTOP)
    running.join(PATIENCE)
    assert running.exitcode == 0, said.read_text()
    until(lambda: not psutil.pid_exists(pids[-1]), "the stopped worker to be gone")
    check("tokens", path, whole("tokens")[0], {}, 2)


CONFIG = """
[weights]
identity = 3
[model]
kind = "softmax"
[initial]
law = "uniform"
n = 900
d = 3
[times]
stop = 1000.0
count = 300
[solver]
kind = "rk4"
step = 0.002
[sweep]
seeds = 6
model.beta = [2.0, 4.0]
"""


@pytest.mark.parametrize("moment", ["before", "workers start", "cells run"])
def test_ctrl_c_is_one_sentence(moment, tmp_path):
    """Ctrl-C in a terminal goes to the sweep and to every worker."""
    (tmp_path / "case.toml").write_text(CONFIG)
    running = subprocess.Popen(
        [
            "env",
            "--default-signal=INT",
            sys.executable,
            "-m",
            "tokenfield",
            "sweep",
            "case.toml",
            "--out",
            "out",
        ],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    if moment == "before":
        time.sleep(1.5)
    else:
        until(lambda: len(offspring(running)) > 1, "workers")
        until(lambda: moment != "cells run" or "computes" in _log(tmp_path), "cells")
    children = offspring(running)
    os.killpg(running.pid, signal.SIGINT)
    try:
        _, errors = running.communicate(timeout=PATIENCE)
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
            running.communicate()
    assert running.returncode == 130
    assert (
        errors
        == "tokenfield: interrupted; what was finished is kept, and what is stored can be gone on with\n"
    )
    until(lambda: not any(child.is_running() for child in children), "the workers to be gone")


def _log(folder):
    file = folder / "out" / "log.txt"
    return file.read_text() if file.exists() else ""
