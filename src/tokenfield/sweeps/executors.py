"""Who computes the tasks of a sweep: this process, workers on this machine, or a dask cluster.

Workers are spawned, never forked (a forked child of a JAX process hangs), and have one thread each: they do
not fight for the cores, and no bit of a result depends on how many there are.
"""

import contextlib
import logging
import math
import multiprocessing
import os
import queue
import signal
import time
import uuid
from collections.abc import Iterator, Sequence
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any

from tokenfield.errors import InputError, RunError, as_whole, require
from tokenfield.sweeps.work import Report, Task, work

if TYPE_CHECKING:
    from distributed import Client

#: What keeps a process to one thread; read by XLA, OpenMP and the BLAS libraries when they start.
ONE_THREAD = {
    "NPROC": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
}
#: What dask does beside the work, done seldom: by default it looks at the clock 50 times and at the stack 100
#: times a second in every process, which costs two busy workers on two cores 6% of their time.
QUIET = {
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.worker.profile.enabled": False,
}
#: Workers a task may take down before its cells count as failed.
DEATHS = 3
#: Seconds after which a worker that says nothing (stopped, or its machine is) is ended and another takes its
#: cells; looked at every so many seconds, so that it may take twice that.
SILENT_SECONDS = 60.0
#: Seconds between two looks at whether the cluster is still there, and how long one may be away.
BEAT, AWAY = 0.5, 15.0

#: Seconds to wait for the report of a task that is done, and what is said if it was lost.
REPORT = 5.0
LOST: list[Report] = [Report("", "lost", "", 0.0)]

#: A task with its reports, or with None while nothing has come in (so that the clock can be looked at).
Answer = tuple[Task, list[Report] | Exception] | None


class Here:
    """This process: nothing is spawned. For tests and small things."""

    address, dashboard, expendable, count = "this process", "", False, 1
    losses = staticmethod(contextlib.nullcontext)

    def run(self, tasks: Sequence[Task]) -> Iterator[Answer]:
        """Compute the tasks one after the other."""
        for task in tasks:
            yield task, work(task)


class Cluster:
    """The workers of a dask client."""

    expendable = True

    def __init__(self, client: "Client"):
        self.client = client
        self._count, self._asked = 0, -math.inf
        self.address, self.dashboard = client.scheduler.address, client.dashboard_link  # pyright: ignore

    @property
    def count(self) -> int:
        """Workers there are now; the scheduler is not asked at every report."""
        if time.monotonic() - self._asked > BEAT:
            threads: Any = self.client.nthreads()
            self._count, self._asked = len(threads), time.monotonic()
        return self._count

    @contextlib.contextmanager
    def losses(self) -> Iterator[None]:
        """Turn whatever a lost scheduler raises, wherever it is noticed, into one sentence."""
        from distributed import CancelledError

        try:
            yield
        except (OSError, TimeoutError, CancelledError) as error:
            raise RunError(self._lost()) from error

    def run(self, tasks: Sequence[Task]) -> Iterator[Answer]:
        """Hand out all tasks and yield what comes back, as it comes; None now and then."""
        done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        mine = uuid.uuid4().hex  # so that a task of a killed sweep is not taken for this one
        left = {}
        for task in tasks:
            future = self.client.submit(work, task, key=f"cells-{mine}-{task.number}", pure=False)
            left[future.key] = (task, future)
            future.add_done_callback(done.put)
        seen = time.monotonic()
        while left:
            try:
                future = done.get(timeout=BEAT)
            except queue.Empty:
                if self._connected():
                    seen = time.monotonic()
                elif time.monotonic() - seen > AWAY:
                    raise RunError(self._lost()) from None
                yield None
                continue
            if future.key not in left:
                continue
            if future.status == "cancelled" or not self._connected():
                raise RunError(self._lost())
            task, _ = left.pop(future.key)
            yield task, _answer(future)

    def _connected(self) -> bool:
        comm = self.client.scheduler_comm and self.client.scheduler_comm.comm
        return self.client.status == "running" and comm is not None and not comm.closed()

    def _lost(self) -> str:
        return f"lost the scheduler at {self.address}; finished cells are kept; start it again to go on"


def _answer(future: Any) -> list[Report] | Exception:
    try:
        # its worker may be gone before it was asked; what it did is on disk
        return future.result(timeout=REPORT)
    except TimeoutError:
        return LOST
    except Exception as error:  # a worker that died, or what it could not send back
        return error


@contextlib.contextmanager
def executor_of(wanted: "int | str | Client | None") -> Iterator[Here | Cluster]:
    """None: a worker per core; a number of workers, 0 for this process; a dask client or its address."""
    if isinstance(wanted, str):
        with _connect(wanted) as client:
            yield Cluster(client)
    elif wanted is None or isinstance(wanted, int):
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        workers = cores if wanted is None else as_whole(wanted, "executor", 0)
        if workers == 0:
            yield Here()
        else:
            with _local(workers) as client:
                yield Cluster(client)
    else:
        from distributed import Client

        require(
            isinstance(wanted, Client),
            "executor",
            "be None, a number of workers, a scheduler's address or a dask Client",
            type(wanted).__name__,
        )
        yield Cluster(wanted)


@contextlib.contextmanager
def _local(workers: int) -> Iterator["Client"]:
    """Workers on this machine, gone with the context and with this process."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise InputError(
            "`sweep` must be called below `if __name__ == '__main__':` in a script,"
            " but was called while a worker imports it"
        )
    from dask import config
    from distributed import Client, LocalCluster, Security

    # keys made for this sweep, never on disk: without them every user of this machine could run code here
    security = Security.temporary()
    settings = QUIET | {
        # XLA's musings about its own compile times would break the bar
        "distributed.nanny.pre-spawn-environ": ONE_THREAD | {"TF_CPP_MIN_LOG_LEVEL": "2"},
        "distributed.scheduler.allowed-failures": DEATHS,
        "distributed.scheduler.worker-ttl": f"{SILENT_SECONDS:g}s",
        "distributed.worker.multiprocessing-method": "spawn",
        # a worker that is slow to come back, on a busy machine, is not given up
        "distributed.deploy.lost-worker-timeout": "1 day",
    }
    with config.set(settings):
        with _no_interrupts_for_workers():
            cluster = LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                processes=True,
                host="127.0.0.1",
                protocol="tls",
                security=security,
                dashboard_address="127.0.0.1:0",
                memory_limit=None,
                silence_logs=logging.CRITICAL,
            )
        with cluster, Client(cluster, security=security, set_as_default=False) as client:
            yield client


@contextlib.contextmanager
def _no_interrupts_for_workers() -> Iterator[None]:
    """Ctrl-C in a terminal goes to every process; workers are to be ended by the sweep, without a word.

    What is blocked here is blocked in the threads that are started meanwhile, and in the processes that those
    start. An interrupt that comes now is noticed afterwards.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # which lets signals in again when it starts, in whatever thread
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _connect(address: str) -> Iterator["Client"]:
    from distributed import Client

    try:
        client = Client(address, timeout=AWAY, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise InputError(
            f"`scheduler` must be the address of a running dask scheduler, but {address!r} gave no answer:"
            f" {error}"
        ) from None
    try:
        yield client
    finally:
        with contextlib.suppress(Exception):  # there may be nobody left to say goodbye to
            client.close(timeout=5)
