"""Tokens spread over devices: the sums of one device, to rounding."""

import os
import socket
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tokenfield as tkf
from tokenfield.sums.base import Queries
from tokenfield.sums.direct import DIRECT
from tokenfield.sums.ring import Ring, mesh_of


def check_sums(devices, n, d=3):
    """All three sums against those of one device, with tokens of weight 0 and queries that see nothing near."""
    rng = np.random.default_rng(n)
    weights = rng.uniform(size=n) * (rng.uniform(size=n) < 0.8)
    weights[0] = 1.0
    tokens = tkf.Tokens(tkf.initial.uniform(n, d, 1).x, weights / weights.sum())
    ring = Ring(mesh=mesh_of(devices))
    for beta, points in ((1.0, tokens.x), (300.0, tokens.x), (3000.0, tkf.initial.uniform(7, d, 5).x)):
        A = beta * jnp.eye(d)
        mine, right = (
            ring.exponential(Queries(A, points), tokens),
            DIRECT.exponential(Queries(A, points), tokens),
        )
        np.testing.assert_allclose(mine.log_mass, right.log_mass, rtol=1e-13, atol=1e-12)
        np.testing.assert_allclose(mine.mean, right.mean, atol=1e-12)
    mine, right = (s.hardmax(Queries(jnp.eye(tokens.d), tokens.x), tokens) for s in (ring, DIRECT))
    for a, b in zip(mine, right, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-14)
    mine, right = (
        s.pointwise(jnp.cosh, Queries(jnp.eye(tokens.d), tokens.x), tokens) for s in (ring, DIRECT)
    )
    for a, b in zip(mine, right, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-14)


def check_runs(devices, n):
    """A run and a gradient against one device."""
    tokens = tkf.initial.uniform(n, 3, 2)
    model = tkf.SoftmaxAttention(tkf.AttentionWeights(np.diag([1.0, 2.0, 0.5]), np.eye(3)), 4.0)
    ts = np.linspace(0, 1, 4)
    alone = tkf.simulate(model, tokens, ts, summation="direct")
    spread = tkf.simulate(model, tokens, ts, devices=devices)
    np.testing.assert_allclose(spread.x, alone.x, atol=1e-12)
    assert spread.stats["steps"] == alone.stats["steps"]
    assert spread.x.shape == alone.x.shape

    def speed(x, sums):
        return jnp.sum(model.velocity(tkf.Tokens(x, tokens.weights), sums) ** 2)

    ring = Ring(mesh=mesh_of(devices))
    a, b = (jax.grad(lambda x, s=s: speed(x, s))(tokens.x) for s in (ring, DIRECT))
    np.testing.assert_allclose(a, b, atol=1e-11)


def check_spread(devices):
    """No device holds all tokens, neither at the start nor after steps."""
    from tokenfield.runs import driver as runs

    seen, advance = [], runs._advance

    def looking(*arguments):
        state = advance(*arguments)
        seen.append(state.y.sharding.shard_shape(state.y.shape))
        return state

    runs._advance = looking
    tokens = tkf.initial.uniform(8 * devices - 1, 3, 2)
    model = tkf.SoftmaxAttention(tkf.AttentionWeights.identity(3), 4.0)
    tkf.simulate(model, tokens, [0.0, 1.0], tkf.RungeKutta4(0.25), devices=devices)
    runs._advance = advance
    assert set(seen) == {(8, 3)}, seen


def check_resume(devices, path):
    """A run that was cut short goes on on its devices to the same bits."""
    tokens = tkf.initial.uniform(21, 3, 2)
    model = tkf.SoftmaxAttention(tkf.AttentionWeights.identity(3), 4.0)
    ts = np.linspace(0, 30, 31)
    asked = {"solver": tkf.RungeKutta4(0.05), "devices": devices}
    whole = tkf.simulate(model, tokens, ts, **asked)
    part = tkf.simulate(model, tokens, ts, store=path, strict=False, time_limit=1e-9, **asked)
    assert not part.complete
    np.testing.assert_array_equal(
        tkf.simulate(model, tokens, ts, store=path, resume=True, **asked).x, whole.x
    )


def on_devices(count, code):
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={count}"}
    done = subprocess.run(
        [sys.executable, "-c", "from tests.sums.test_ring import *\n" + code],
        env=os.environ | flags,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
def test_two_devices():
    on_devices(2, "check_sums(2, 9)")


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2, 4, 8])
def test_many_devices(devices, tmp_path):
    sizes = (8 * devices, 8 * devices + 3, devices + 1)
    code = "".join(f"check_sums({devices}, {n}); " for n in (*sizes, 1200))
    on_devices(
        8,
        f"{code} check_runs({devices}, 24); check_runs({devices}, 25); check_spread({devices});"
        f" check_resume({devices}, {str(tmp_path / 'run')!r})",
    )


HOSTS = """
import sys, jax
jax.distributed.initialize(sys.argv[1], num_processes=2, process_id=int(sys.argv[2]))
from tests.sums.test_ring import *
assert (jax.device_count(), jax.local_device_count()) == (4, 2)
tokens = tkf.initial.uniform(9, 3, 2)
model = tkf.SoftmaxAttention(tkf.AttentionWeights(np.diag([1.0, 2.0, 0.5]), np.eye(3)), 4.0)
asked = {"ts": np.linspace(0, 1, 3), "solver": tkf.RungeKutta4(0.02), "measure": {"R": tkf.order_parameter}}
spread = tkf.simulate(model, tokens, devices=4, **asked)
alone = tkf.simulate(model, tokens, summation="direct", **asked)
np.testing.assert_allclose(spread.x, alone.x, atol=1e-13)
np.testing.assert_allclose(spread.measured["R"], alone.measured["R"], atol=1e-13)
with pytest.raises(tkf.InputError, match="^`store` must not be used on several hosts"):
    tkf.simulate(model, tokens, devices=4, store="nowhere", **asked)
"""


@pytest.mark.slow
def test_two_hosts():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    hosts = [
        subprocess.Popen(
            [sys.executable, "-c", HOSTS, address, str(rank)],
            env=os.environ | flags,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [host.communicate(timeout=300)[1] for host in hosts]
    finally:
        for host in hosts:
            host.kill()
    assert [host.returncode for host in hosts] == [0, 0], said


@pytest.mark.slow
def test_one_device_is_a_ring_too():
    check_sums(1, 9)


@pytest.mark.parametrize("devices", [0, 1.5, 10**6, "two"])
def test_devices_that_are_not_there(devices):
    model = tkf.SoftmaxAttention(tkf.AttentionWeights.identity(3), 4.0)
    with pytest.raises(tkf.InputError, match="^`devices` must be"):
        tkf.simulate(model, tkf.initial.uniform(9, 3, 2), [0.0, 1.0], devices=devices)


def test_what_a_ring_cannot_do():
    model = tkf.SoftmaxAttention(tkf.AttentionWeights.identity(3), 4.0)
    tokens = tkf.initial.uniform(9, 3, 2)
    with pytest.raises(tkf.InputError, match="^`merge_angle` must not be used on several devices"):
        tkf.simulate(model, tokens, [0.0, 1.0], devices=1, merge_angle=0.1)
    with pytest.raises(tkf.InputError, match="^`summation` must be 'auto' or 'direct' on several devices"):
        tkf.simulate(model, tokens, [0.0, 1.0], devices=1, summation="harmonic")
