"""The processes of a sweep, to be killed: a scheduler, workers and a driver, each one function.

They are forked from a server that has imported everything and computed nothing, which saves the seconds that
a fresh Python takes to import JAX. (Sweeps themselves spawn; `test_faults` kills such ones as well.)
"""

import asyncio
import contextlib
import logging
import os
import sys
import traceback
import warnings
from pathlib import Path

import distributed

import tokenfield  # noqa: F401 (imported before the fork)
from tests.sweeps.cases import small
from tokenfield.errors import RunError
from tokenfield.sweeps import executors
from tokenfield.sweeps.drive import sweep
from tokenfield.sweeps.executors import ONE_THREAD

#: Seventeen tiny cells, in pairs as one program, and seventeen that are done alone.
SLOW = small(
    times={"stop": 10.0, "count": 3},
    solver={"step": 0.02},
    run={"measure": ["order_parameter"]},
    sweep={"model": {"beta": [5.0]}, "seeds": 17, "initial": {"n": [8, 130]}},
)
#: Twelve mean-field runs, always alone.
DENSITY = {
    "weights": {"identity": 2},
    "model": {"kind": "unnormalised"},
    "density": {"domain": "circle", "modes": 64},
    "initial": {"law": "circle_density", "cos": [0.3], "sin": [0.0, 0.2]},
    "times": {"stop": 10.0, "count": 5},
    "run": {"measure": ["order_parameter", "free_energy"], "snapshots": [-1]},
    "sweep": {"model": {"beta": [1.0, 1.5, 2.0]}, "noise": {"kappa": [2.0, 4.0, 8.0, 16.0]}},
}
SWEEPS = {"tokens": SLOW, "density": DENSITY}
#: Exit code of a driver that ended with a sentence.
SENTENCE = 3


def _quiet() -> None:
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def scheduler(file: str) -> None:
    """A scheduler that writes its address to a file."""
    _quiet()

    async def serve() -> None:
        async with distributed.Scheduler(host="127.0.0.1", port=0, dashboard=False) as made:
            Path(file + ".draft").write_text(made.address)
            os.replace(file + ".draft", file)
            await made.finished()

    asyncio.run(serve())


def worker(address: str, directory: str) -> None:
    """A worker without a nanny."""
    _quiet()
    os.environ.update(ONE_THREAD)

    async def serve() -> None:
        async with distributed.Worker(
            address, nthreads=1, local_directory=directory, dashboard=False
        ) as made:
            await made.finished()

    with contextlib.suppress(Exception):
        asyncio.run(serve())


def impatient_driver(name: str, store: str, executor: "str | int", said: str) -> None:
    """The same, but a worker that says nothing is given up soon."""
    executors.SILENT_SECONDS = 10.0
    driver(name, store, executor, said)


def driver(name: str, store: str, executor: "str | int", said: str) -> None:
    """A sweep; the sentence it ends with, if it does, goes to a file."""
    _quiet()
    try:
        sweep(SWEEPS[name], executor, store=store)
    except RunError as error:
        Path(said).write_text(str(error))
        os._exit(SENTENCE)
    except BaseException:
        Path(said).write_text(traceback.format_exc())
        os._exit(1)
    os._exit(0)
