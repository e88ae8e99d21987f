"""Nobody else on the machine can reach the processes of a sweep."""

import multiprocessing
import os
import warnings

import pytest

import tokenfield as tkf
from tests.sweeps.cases import SMALL
from tokenfield.sweeps import executors

pytestmark = pytest.mark.slow
#: A user that every system has and that owns nothing.
NOBODY = 65534
#: How an attacker's process ends.
REACHED, REFUSED = 3, 4


def attack(addresses, user):
    """Try to run a function in every process, without a certificate and with one of one's own."""
    from distributed import Client, Security

    warnings.simplefilter("ignore")
    own = Security.temporary()
    if user is not None:
        os.setgid(user)
        os.setuid(user)
    for address in addresses:
        for plain, security in ((True, None), (False, own)):
            where = address.replace("tls://", "tcp://") if plain else address.replace("tcp://", "tls://")
            try:
                with Client(where, timeout=2, security=security, set_as_default=False) as client:
                    client.run_on_scheduler(os.getpid)
                os._exit(REACHED)
            except (OSError, TimeoutError, ValueError):
                pass
    os._exit(REFUSED)


def attacked(addresses, user):
    process = multiprocessing.get_context("forkserver").Process(target=attack, args=(addresses, user))
    process.start()
    process.join(120)
    return process.exitcode


@pytest.fixture(scope="module")
def workers():
    with executors.executor_of(1) as workers:
        yield workers


def test_a_process_without_the_sweeps_keys_is_refused(workers):
    """The scheduler and the worker; the driver itself listens nowhere else."""
    listening = [workers.address, *workers.client.nthreads()]
    assert all(address.startswith("tls://127.0.0.1:") for address in listening)
    assert attacked(listening, None) == REFUSED


def test_another_user_is_refused(workers):
    if not hasattr(os, "getuid") or os.getuid() != 0:
        pytest.skip("only root may switch to another user")
    assert attacked([workers.address, *workers.client.nthreads()], NOBODY) == REFUSED


def test_an_open_scheduler_would_be_reached():
    """What the tests above would find if there were no keys."""
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=1, processes=False, host="127.0.0.1", protocol="tcp", dashboard_address=None
    ) as cluster:
        assert attacked([cluster.scheduler_address], None) == REACHED


def test_no_key_is_written_anywhere(workers, tmp_path):
    tkf.sweep(SMALL, workers.client, store=tmp_path / "sweep")
    security = workers.client.security
    secrets = [security.tls_client_key, security.tls_scheduler_key, security.tls_worker_key]
    assert all("PRIVATE KEY" in key for key in secrets)
    for file in (tmp_path / "sweep").rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert b"PRIVATE KEY" not in content and b"CERTIFICATE" not in content, file
