"""Cells that are many small systems on the circle."""

import numpy as np
import pytest

import tokenfield as tkf
from tokenfield.papers.clustering.phase_diagram import any_dimension
from tokenfield.sweeps import dataset, grid, pairs
from tokenfield.sweeps.repeat import rerun

SMALL = {
    "pairs": {"n": 4, "systems": 6, "key": 3, "stop": 3.0, "step": 0.05, "stride": 4},
    "sweep": {"pairs": {"beta": [0.5, 3.0]}},
}


def changed(**settings):
    return SMALL | {"pairs": SMALL["pairs"] | settings}


def test_a_sweep_of_systems_is_the_flow_of_their_inner_products(tmp_path):
    """The same systems by a second method, in NumPy."""
    data = tkf.sweep(SMALL, 0, store=tmp_path / "s")
    assert (data.state == dataset.COMPLETE).all()
    assert data.share.dims == ("beta", "time")
    theta = pairs.start(6, 3, 4).T
    x = np.stack([np.cos(theta), np.sin(theta)], axis=2)
    other = any_dimension(x, np.array([0.5, 3.0]), 15, step=0.05, stride=4)
    np.testing.assert_allclose(data.time, other.ts, atol=1e-12)
    np.testing.assert_allclose(data.share, other.share, atol=1e-12)
    assert data.share[0, -1] > data.share[0, 0]
    assert rerun(tmp_path / "s", "1", 0).identical
    late = changed()
    late["sweep"] = SMALL["sweep"] | {"time_limit": 1e-9}
    stopped = tkf.sweep(late, 0, store=tmp_path / "late")
    assert (stopped.state == dataset.FAILURE).all()
    assert str(stopped.status[0].values) == "stopped at t = 0: the time limit of 1e-09 s is used up"


def test_seeds_give_keys():
    config = {"pairs": SMALL["pairs"] | {"beta": 1.0}, "sweep": {"seeds": 3}}
    del config["pairs"]["key"]
    assert len({cell.settings["pairs"]["key"] for cell in grid.declare(config).cells}) == 3


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"stop": 3.1}, "`pairs.stop` must be a multiple of step · stride = 0.2, but was 3.1"),
        ({"n": 1}, "`pairs.n` must be greater than or equal to 2, but was 1"),
        ({"systems": 0}, "`pairs.systems` must be greater than or equal to 1"),
        ({"beta": 1.0, "d": 3}, "`pairs.d` is not a known setting; known here: beta, n, systems"),
        ({"step": "1 / 0"}, "`pairs.step` must be a valid number"),
    ],
)
def test_what_cannot_be_declared_is_one_sentence(change, sentence):
    with pytest.raises(tkf.InputError) as error:
        grid.declare(changed(**change))
    assert str(error.value).startswith(sentence)


@pytest.mark.parametrize("n", [3, 6, 7])
def test_rows_need_not_be_a_power_of_two(n):
    """Systems that merge to fewer rows keep all their mass."""
    theta = np.random.default_rng(0).uniform(0, 2 * np.pi, size=(n, 9))
    theta[1, ::2] = theta[0, ::2] + 1e-5
    regrouped = pairs._regroup([(theta, np.ones(theta.shape))])
    assert sum(mass.shape[1] for _, mass in regrouped) == 9
    for _, mass in regrouped:
        np.testing.assert_allclose(mass.sum(axis=0), n)
