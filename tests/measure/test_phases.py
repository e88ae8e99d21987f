"""The phases of the worked case, of made-up runs whose phases are known, and of runs without any."""

from functools import cache

import numpy as np
import pytest
from scipy.stats import ortho_group

import tokenfield as tkf
from tokenfield.measure.approach import measure
from tokenfield.measure.classification import Course, classify, phase_so_far
from tokenfield.measure.phases import cluster_count
from tokenfield.measure.prediction import Prediction
from tokenfield.measure.target import angle_to

B, V = np.diag([0.5, 2.0]), np.diag([1.0, 0.5])
WORKED = tkf.AttentionWeights(B, V)
ANGLES = np.array([0.3, 0.8, 1.2, 1.7, 2.6, 3.9, 4.4, 5.0])


def on_circle(angles):
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1)


def made_up(ts, x, **inputs):
    """A trajectory with the given tokens, which nobody simulated."""
    n = x.shape[1]
    return tkf.Trajectory(
        ts=ts,
        x=x,
        weights=np.full(n, 1 / n),
        snapshot_ts=ts,
        measured={},
        stats={},
        inputs=inputs,
        status="made up",
        complete=True,
    )


def off_e2(ts, offset):
    """Tokens on both sides of the circle at the angle offset(t) from ±e2, the same for all."""
    side = np.sign(np.sin(ANGLES)) * np.pi / 2
    return made_up(ts, on_circle(side[None] - offset(ts)[:, None] * np.where(np.arange(8) % 2, 1, -1)))


@cache
def worked_run(beta, turned=False):
    u = (np.arange(400) + 0.5) * 2 * np.pi / 400
    theta = u - 0.475 * np.sin(2 * u)  # graded towards ±e1
    w = (1 - 0.95 * np.cos(2 * u)) * (1 + 0.3 * np.cos(theta) + 0.2 * np.sin(theta))
    R = ortho_group.rvs(2, random_state=1) if turned else np.eye(2)
    weights = tkf.AttentionWeights(R @ B @ R.T, R @ V @ R.T)
    tokens = tkf.Tokens(on_circle(theta) @ R.T, w / w.sum())
    model = tkf.ZeroTemperature(weights) if np.isinf(beta) else tkf.SoftmaxAttention(weights, beta)
    solver = tkf.Adaptive(rtol=1e-6, atol=1e-9)
    ts = np.linspace(0, 40 if np.isinf(beta) else 60, 161 if np.isinf(beta) else 241)
    return tkf.phases(tkf.simulate(model, tokens, ts, solver, summation="direct"), weights)


def names(found):
    return [phase.name for phase in found.found]


@pytest.mark.parametrize(
    ("beta", "bottom", "rel"),
    [
        pytest.param(10.0, 7, 0.3, marks=pytest.mark.slow),
        (100.0, 11, 0.1),
        pytest.param(1000.0, 16, 0.05, marks=pytest.mark.slow),
    ],
)
def test_worked_case(beta, bottom, rel):
    """Theory §2.6: rate .25 (the closer the colder), bottom near 7, 11, 16, growth up to .5, end at ±e1."""
    found = worked_run(beta)
    assert names(found) == ["concentration", "metastable", "escape", "terminal"]
    assert found.get("concentration").rate == pytest.approx(0.25, rel=rel)
    assert found.minimum_time == pytest.approx(bottom, abs=1)
    if beta > 10:
        assert 0.4 < found.get("escape").rate < 0.5
        low, high = found.get("concentration").interval
        assert low < found.get("concentration").rate < high < low + 0.1
    terminal = found.get("terminal")
    assert terminal.rate == pytest.approx(0.5, rel=0.1)  # y' = P_y V y approaches e1 at the gap of V
    assert terminal.to_end < 1e-3 and terminal.to_limit == pytest.approx(np.pi / 2, abs=1e-3)
    assert found.get("metastable").clusters == 2 and terminal.clusters <= 2
    for before, after in zip(found.found, found.found[1:], strict=False):
        assert before.start < before.stop <= after.start
    assert found.method.startswith("W2") and "ended in the dominant eigenspace of V" in found.note


@pytest.mark.slow
def test_zero_temperature_only_concentrates():
    found = worked_run(np.inf)
    assert names(found) == ["concentration"]
    assert found.get("concentration").rate == pytest.approx(0.25, rel=0.01)
    assert "concentration only" in found.note


@pytest.mark.slow
def test_rotated_run_has_the_same_phases():
    plain, turned = worked_run(100.0), worked_run(100.0, turned=True)
    assert names(plain) == names(turned)
    for a, b in zip(plain.found, turned.found, strict=True):
        assert (a.start, a.stop, a.clusters) == (b.start, b.stop, b.clusters)
        assert a.rate == b.rate is None or a.rate == pytest.approx(b.rate, rel=1e-3)


def test_phases_of_a_curve_that_was_drawn():
    """offset = e^{−t} + 10^{−4}e^{t/2}: least at t = log(2·10⁴)/1.5; the factor 2 is solved for here."""
    ts = np.linspace(0, 18, 361)
    curve = np.exp(-ts) + 1e-4 * np.exp(ts / 2)
    found = tkf.phases(off_e2(ts, lambda t: np.minimum(curve, 0.9)), WORKED)
    assert names(found) == ["concentration", "metastable", "escape"]
    best = np.log(2e4) / 1.5
    assert found.minimum_time == pytest.approx(best, abs=0.051)
    least = np.exp(-best) + 1e-4 * np.exp(best / 2)
    inside = ts[curve <= 2 * least]
    stay = found.get("metastable")
    assert stay.start == pytest.approx(inside[0], abs=0.051) and stay.stop == pytest.approx(
        inside[-1], abs=0.03
    )
    # slopes run from 1 to that where the phase ends, and from that where the escape begins to ½
    falling, growing = ((np.exp(-t) - 5e-5 * np.exp(t / 2)) / (2 * least) for t in (inside[0], inside[-1]))
    assert falling < found.get("concentration").rate < 1
    assert -growing < found.get("escape").rate < 0.5
    assert "had not reached the dominant eigenspace of V" in found.note


@pytest.mark.parametrize(
    ("offset", "expected", "words"),
    [
        (lambda t: np.exp(-t / 4), ["concentration"], "still falling"),
        (lambda t: 1 / (1 + t), ["concentration"], "still falling"),
        (lambda t: (1 + t) ** -0.5, ["concentration"], "still falling"),
        (lambda t: np.exp(-t / 4) + 0.005 * np.exp(t / 7), ["concentration", "metastable"], "had not left"),
        (lambda t: 0.5 + 0.6 * (t < 8) + 0.01 * np.sin(t), ["concentration", "metastable"], "had not left"),
        (lambda t: np.exp(-2 * t) + 1e-7 * np.cos(9 * t), ["concentration", "metastable"], "had not left"),
        (lambda t: np.full_like(t, 0.9), [], "no concentration"),
        (lambda t: 0.9 - 0.01 * t, [], "no concentration"),
        (lambda t: 0 * t, [], "nothing happened"),
        (
            lambda t: np.exp(-t) + 0.01,
            ["concentration", "metastable"],
            "stay within 0.018 of Π♯ρ0 and had not left",
        ),
        (lambda t: np.minimum(1e-3 * np.exp(t / 2), 0.7), ["metastable", "escape"], "left"),
    ],
)
def test_no_phase_is_invented(offset, expected, words):
    found = tkf.phases(off_e2(np.linspace(0, 20, 101), offset), WORKED)
    assert names(found) == expected
    assert words in found.note


def test_noise_below_the_solvers_tolerance_is_no_escape():
    """After the approach the distance jumps about, thirtyfold, below ten times the tolerance."""
    ts = np.linspace(0, 60, 241)
    noise = np.where(np.arange(241) % 7 == 0, 3e-6, 1e-7)
    run = off_e2(ts, lambda t: np.exp(-t) + noise)
    assert names(tkf.phases(run, WORKED)) != ["concentration", "metastable"]
    found = tkf.phases(made_up(ts, run.x, solver={"rtol": 1e-6}), WORKED)
    assert names(found) == ["concentration", "metastable"]
    assert found.get("concentration").rate == pytest.approx(1, rel=0.05)


def test_a_swing_where_no_escape_is_predicted():
    """e^{−t/4} with swings of a factor 5: V = D, so nothing leaves, whenever the run ends."""
    weights = tkf.AttentionWeights(np.eye(2), np.diag([0.5, 1.0]))
    for end in np.linspace(12, 16, 9):
        ts = np.linspace(0, end, 161)
        found = tkf.phases(off_e2(ts, lambda t: np.exp(-t / 4) * np.exp(0.8 * np.sin(4 * t))), weights)
        assert "escape" not in names(found) and "no escape is predicted" in found.note


def test_escape_that_begins_far_out_has_a_rate():
    """2·least is more than a third of the greatest distance: half of the way counts."""
    ts = np.linspace(0, 20, 401)
    curve = np.minimum(np.maximum(np.exp(-ts / 2), 0.3 * np.exp(0.2 * (ts - 6))), 1.5)
    escape = tkf.phases(off_e2(ts, lambda t: curve), WORKED).get("escape")
    assert escape.rate == pytest.approx(0.2, rel=1e-6)


def test_rotating_limits_are_not_said_to_rest():
    D = np.array([[0.8, -1, 0], [1, 0.8, 0], [0, 0, 0.1]])
    weights = tkf.AttentionWeights(np.eye(3), D)
    ts = np.linspace(0, 40, 81)
    run = tkf.simulate(tkf.ZeroTemperature(weights), tkf.initial.uniform(50, 3, 0), ts)
    found = tkf.phases(run, weights)
    assert "circulate in E" in found.note and "Π♯ρ0" not in found.note
    assert found.get("concentration").rate == pytest.approx(0.7, rel=1e-3)  # B = I: the gap of the real parts


def test_an_algebraic_approach_has_no_exponential_rate():
    weights = tkf.AttentionWeights(np.eye(2), np.array([[1.0, 1.0], [0.0, 1.0]]))
    start = tkf.initial.uniform(40, 2, 0)
    run = tkf.simulate(tkf.ZeroTemperature(weights), start, np.linspace(0, 40, 81), summation="direct")
    found = tkf.phases(run, weights).get("concentration")
    assert found is not None and found.rate is None and found.interval is None
    assert (
        "D is defective, and a token approaches like 1/t" in found.sentence
        and "too few" not in found.sentence
    )


def test_whole_spaces_have_no_phases():
    run = off_e2(np.linspace(0, 5, 21), lambda t: 0.1 * t)
    found = tkf.phases(run, tkf.AttentionWeights.identity(2))
    assert found.found == () and "whole space" in found.note
    # V = 1: there is no smaller eigenspace to end in
    found = tkf.phases(run, tkf.AttentionWeights(np.diag([0.5, 2.0]), np.eye(2)))
    assert "terminal" not in names(found)


@pytest.mark.parametrize(
    ("D", "value", "expected"),
    [
        (np.diag([0.5, 1.0, 0.2]), V, Prediction.LEAVE),
        (np.diag([1.0, 0.5, 0.2]), V, Prediction.STAY),
        (np.diag([2.0, 1, 0.5]), np.array([[1, -0.6, 0], [0.6, 1, 0], [0, 0, 0.2]]), Prediction.CIRCULATE),
        # ⟨Bᵀe2, e2⟩ < 0: in V's eigenspace, but a cluster there does not see itself
        (np.diag([0.5, 1.0, 0.2]), np.diag([-2.0, -1, -3]), Prediction.OPEN),
        # V has a Jordan block on e1, e2 and the same eigenvalue on e3, outside the space e1 of its ends
        (np.diag([0.5, 0.6, 2]), np.array([[1.0, 1, 0], [0, 1, 0], [0, 0, 1]]), Prediction.STAY),
    ],
)
def test_predictions_have_names(D, value, expected):
    value = np.diag([*np.diag(value), 0.3]) if len(value) == 2 else value
    weights = tkf.AttentionWeights((np.linalg.inv(value) @ D).T, value)
    run = tkf.Trajectory(**{**vars(off_e2(np.arange(3.0), lambda t: t / 9)), "x": on_sphere()})
    assert measure(run, weights).prediction is expected


def on_sphere():
    return np.broadcast_to(np.asarray(tkf.initial.uniform(8, 3, 0).x), (3, 8, 3)).copy()


def test_the_last_frame_has_the_last_phase_of_the_run():
    """e^{−t} + 10^{−4}e^{t/2}, cut off ever later: named live as by `classify`, once a phase has begun."""
    ts = np.linspace(0, 18, 361)
    curve = np.minimum(np.exp(-ts) + 1e-4 * np.exp(ts / 2), 0.9)
    seen = []
    for k in (60, 150, 300):
        curves = measure(off_e2(ts[:k], lambda t, k=k: curve[:k]), WORKED)
        seen.append(phase_so_far(curves.ts, curves.distance, curves.to_end, inside=False))
        assert classify(curves).spans[-1].name == seen[-1]
    assert seen == ["concentration", "metastable", "escape"] and classify(curves).course is Course.LEFT


def test_same_eigenspace_is_said():
    """B = I: V and D share everything, nothing leaves."""
    weights = tkf.AttentionWeights(np.eye(2), np.diag([0.5, 1.0]))
    found = tkf.phases(off_e2(np.linspace(0, 8, 41), lambda t: np.exp(-t / 2)), weights)
    assert names(found) == ["concentration"] and "no escape is predicted" in found.note


def law_on_circle(n=400):
    return tkf.initial.circle_density(lambda a: 1 + 0.3 * np.cos(a) + 0.2 * np.sin(a), n)


def law_on_sphere(n=512):
    return tkf.initial.sphere_density(lambda x: 1 + 0.3 * x[:, 0] + 0.2 * x[:, 1] + 0.1 * x[:, 2], n)


def run_of(D, V, beta, tokens, end=40.0, count=81):
    """A run with that V Bᵀ, and its phases."""
    weights = tkf.AttentionWeights((np.linalg.inv(V) @ D).T, V)
    run = tkf.simulate(
        tkf.SoftmaxAttention(weights, beta),
        tokens,
        np.linspace(0, end, count),
        tkf.Adaptive(1e-6, 1e-8),
        summation="direct",
    )
    return run, tkf.phases(run, weights)


@pytest.mark.parametrize(("angle", "beta"), [(0.5, 10.0), (0.3, 30.0), (0.1, 5.0), (0.1, 300.0)])
def test_an_end_close_to_the_limit_law_is_terminal(angle, beta):
    """E is `angle` from V's eigenspace, less than twice the least distance: the tokens do end in the latter."""
    c, s = np.cos(angle), np.sin(angle)
    R = np.array([[c, -s], [s, c]])
    run, found = run_of(R @ np.diag([2.0, 1.0]) @ R.T, V, beta, law_on_circle())
    assert np.all(np.abs(run.x[-1, :, 0]) > 1 - 1e-12)  # all at ±e1, by hand
    assert names(found)[-1] == "terminal" and "ended in the dominant eigenspace of V" in found.note
    assert "stay" not in found.note
    assert found.get("terminal").rate == pytest.approx(0.5, rel=0.02)  # the gap of V
    terminal = run.snapshot_ts >= found.get("terminal").start
    off = np.arccos(np.clip(np.abs(run.x[..., 0]), 0, 1))
    assert np.all(np.sqrt(np.mean(off[terminal] ** 2, axis=1)) < 0.06)  # close to: weights differ a little


def test_clusters_that_look_away_leave_although_v_would_keep_them():
    """⟨Bᵀe1, e1⟩ < 0: the cluster at e1 sees that at −e1. a' = b − a/2, b' = a − b/2 grows at ½."""
    run, found = run_of(np.diag([1.0, 0.6]), np.diag([-0.5, -1.0]), 100.0, law_on_circle())
    assert np.all(np.abs(run.x[-1, :, 1]) > 0.999)  # at ±e2, V's lowest
    assert names(found) == ["concentration", "metastable", "escape"]
    assert found.get("escape").rate == pytest.approx(0.5, abs=0.05)
    assert "no escape is predicted" not in found.note and "need not see itself" in found.note


def test_a_defective_v_lets_clusters_leave_for_its_eigenvector():
    """V e2 = e2 + e1/2: E = span e2 lies in the generalised eigenspace only, and clusters go to ±e1."""
    defective = np.array([[1.0, 0.5, 0], [0, 1, 0], [0, 0, 0.3]])
    run, found = run_of(np.diag([0.6, 2.0, 0.4]), defective, 100.0, law_on_sphere())
    assert names(found) == ["concentration", "metastable", "escape"]
    off = np.arccos(np.clip(np.abs(run.x[-1, :, 0]), 0, 1))
    rms = np.sqrt(np.asarray(run.weights) @ off**2)
    assert f"root mean square angle {rms:.3g}" in found.note


@pytest.mark.parametrize(
    ("beta", "expected"), [(100.0, ["concentration", "metastable", "terminal"]), (10.0, ["terminal"])]
)
def test_clusters_that_v_turns_round_pass_by_their_limit_again(beta, expected):
    """V turns the plane of e1 and e2, E = span e1: only the first approach is concentration."""
    turning = np.array([[1, -0.6, 0], [0.6, 1, 0], [0, 0, 0.2]])
    _, found = run_of(np.diag([2.0, 1, 0.5]), turning, beta, law_on_sphere())
    assert names(found) == expected
    assert "no escape is predicted" not in found.note
    for phase in found.found:
        assert phase.rate is None or phase.rate > 0
    if "concentration" in expected:
        assert found.get("metastable").stop < 8 and "where they circulate" in found.note
    else:
        assert "no concentration" in found.note
    _, both = run_of(np.diag([2.0, 1]), np.array([[1.0, -1], [1, 1]]), 300.0, law_on_circle(), 10, 41)
    assert "whole space" in both.note and "no escape is predicted" not in both.note


def test_a_defective_d_whose_tokens_end_on_a_line_has_an_exact_distance():
    """Single tokens approach like 1/t, but mass 1/t starts on the wrong side: W2 falls like t^{−1/2}."""
    weights = tkf.AttentionWeights(np.eye(2), np.array([[0.5, 1.0], [0, 0.5]]))
    start = tkf.initial.circle_density(lambda a: 1 + 0.5 * np.cos(a - 0.3), 4000)
    ts = np.append(0, np.geomspace(1, 30, 30))
    found = tkf.phases(tkf.simulate(tkf.ZeroTemperature(weights), start, ts), weights)
    assert found.method.startswith("W2 to Π♯ρ0, exact")
    late = ts > 5
    power = tkf.fit_rate(ts[late], found.distance[late], model="power").power
    assert power == pytest.approx(-0.5, abs=0.05) and found.found[0].rate is None


def test_a_curve_that_is_not_exponential_is_reported_as_such():
    """Two exponentials one after the other: 0.2, then 1 for as far."""
    ts = np.linspace(0, 18, 181)
    curve = np.where(ts < 15, np.exp(-0.2 * ts), np.exp(-3 - (ts - 15)))
    sentence = tkf.phases(off_e2(ts, lambda t: curve), WORKED).get("concentration").sentence
    assert "the curve is not exponential" in sentence
    sentence = tkf.phases(off_e2(ts, lambda t: np.exp(-0.2 * t)), WORKED).get("concentration").sentence
    assert "exponential" not in sentence and "at the rate 0.2 " in sentence


def test_an_escape_by_less_than_a_factor_two_has_no_rate():
    ts = np.linspace(0, 20, 201)
    curve = np.interp(ts, [0, 6, 10, 20], [1.3, 0.5, 0.51, 1.4])
    escape = tkf.phases(off_e2(ts, lambda t: curve), WORKED).get("escape")
    assert escape.rate is None and "by less than a factor 2" in escape.sentence


def test_what_else_one_has_to_know_is_in_the_note():
    uniform = tkf.initial.circle_density(np.ones_like, 60)
    run = tkf.simulate(
        tkf.SoftmaxAttention(WORKED, 30.0), uniform, np.linspace(0, 90, 46), summation="direct"
    )
    assert "broken a symmetry" in run.status
    assert "what follows is made by rounding" in tkf.phases(run, WORKED).note
    still = made_up(np.arange(3.0), np.broadcast_to(np.array([[1.0, 0], [0, 1]]), (3, 2, 2)).copy())
    assert "a part 0.5 of the mass began where P_E x = 0" in tkf.phases(still, WORKED).note


def test_few_saved_times_prove_little():
    found = tkf.phases(off_e2(np.array([0.0, 40.0]), lambda t: np.array([0.9, 1.57])), WORKED)
    assert found.note.startswith(
        "no concentration at the 2 saved times: the distance to Π♯ρ0 was 0.9 at first and 0.9 at best"
    )
    assert "fell" not in found.found[0].sentence


def test_tokens_that_go_straight_to_v_did_not_leave_anything():
    """E is .2 from V's eigenspace, one cluster beyond it: the distance falls to .2 and that is that."""
    c, s = np.cos(0.2), np.sin(0.2)
    R = np.array([[c, -s], [s, c]])
    tokens = tkf.Tokens(on_circle(np.array([-1.0, -1.2, -0.8])))
    _, found = run_of(R @ np.diag([2.0, 0.8]) @ R.T, V, 1000.0, tokens, 30, 61)
    assert np.all(np.diff(found.distance) < 0) and found.minimum == pytest.approx(0.2, abs=1e-3)
    assert names(found) == ["concentration", "terminal"]
    assert "fell to 0.2 and did not grow again" in found.note


def test_a_rotating_d_that_fills_the_plane_does_not_hide_the_end():
    """d = 2 and D a rotation: E is everything, but the tokens go to e1 and rest there."""
    weights = tkf.AttentionWeights(np.array([[0.3, 1.0], [-3.0, 0.5]]), np.diag([1.0, 0.3]))
    start = tkf.initial.cap(12, np.array([0.6, 0.8]), 0.3, 1)
    run = tkf.simulate(tkf.SoftmaxAttention(weights, 40.0), start, np.linspace(0, 40, 81))
    assert np.all(np.abs(run.x[-1, :, 0]) > 1 - 1e-9)
    found = tkf.phases(run, weights)
    assert names(found) == ["terminal"] and found.get("terminal").rate == pytest.approx(0.7, rel=0.01)
    assert "circulate" not in found.note and "nothing happened" not in found.note


def test_tokens_at_rest_in_e_do_not_circulate():
    """D turns the plane E, but V is the identity there: one cluster rests."""
    c, s = np.cos(1.0), np.sin(1.0)
    weights = tkf.AttentionWeights(np.array([[c, -s, 0], [s, c, 0], [0, 0, 1.0]]), np.diag([1.0, 1, 0.2]))
    start = tkf.initial.cap(30, np.array([0.8, 0, 0.6]), 0.1, 1)
    run = tkf.simulate(tkf.SoftmaxAttention(weights, 300.0), start, np.linspace(0, 30, 61))
    assert np.max(np.abs(run.x[40] - run.x[60])) < 1e-4
    assert "circulate" not in tkf.phases(run, weights).note


def test_a_distance_that_rises_first_falls_from_its_top():
    ts = np.linspace(0, 30, 121)
    curve = np.minimum(0.2 * np.exp(ts), 1.4 * np.exp(-0.3 * np.maximum(ts - 2, 0)))
    phase = tkf.phases(off_e2(ts, lambda t: curve), WORKED).get("concentration")
    assert "fell from 1.4 to" in phase.sentence and "after a rise from 0.2" in phase.sentence
    assert phase.rate == pytest.approx(0.3, rel=1e-3)


@pytest.mark.parametrize("count", [3, 4, 6])
def test_few_saved_times_of_a_falling_curve_are_concentration(count):
    """It falls by more than a factor 2 from one saved time to the next."""
    found = tkf.phases(off_e2(np.linspace(0, 20, count), lambda t: np.exp(-t / 4)), WORKED)
    assert names(found) == ["concentration"] and "still falling" in found.note


def test_a_curve_that_has_turned_does_not_fall():
    ts = np.linspace(0, 10, 101)
    found = tkf.phases(
        off_e2(ts, lambda t: np.where(t < 9, np.exp(-t / 4), np.exp(-2.25 + (t - 9) / 25))), WORKED
    )
    assert "still falling" not in found.note and names(found) == ["concentration", "metastable"]


def test_too_few_times_for_a_rate_are_said():
    found = tkf.phases(off_e2(np.linspace(0, 8, 4), lambda t: np.exp(-t / 2)), WORKED)
    assert found.get("concentration").rate is None
    assert "too few saved times" in found.get("concentration").sentence


def test_rotating_and_plane_limits_say_what_they_measure():
    ts = np.linspace(0, 5, 21)
    run = off_e2(ts, lambda t: np.exp(-t))
    turning = tkf.AttentionWeights(np.eye(2), np.array([[0.0, -1.0], [1.0, 0.0]]))
    assert "no limit law" in tkf.phases(run, turning).method
    x = np.concatenate([run.x, np.zeros((21, 8, 1))], axis=2)
    plane = tkf.AttentionWeights(np.eye(3), np.diag([1.0, 1.0, 0.0]))
    assert tkf.phases(made_up(ts, x), plane).method.startswith("upper bound of W2")


def test_angles_and_clusters():
    basis = np.eye(3)[:, :2]
    x = np.array([[1.0, 0, 0], [0, 0.6, 0.8], [0, 0, -1]])
    np.testing.assert_allclose(
        angle_to(tkf.Tokens(x), basis), [0, np.arctan2(0.8, 0.6), np.pi / 2], atol=1e-15
    )
    tokens = tkf.Tokens(on_circle(np.array([0.0, 0.01, 1.0, 3.0])), [0.5, 0.2999, 0.2, 0.0001])
    assert cluster_count(tokens) == 2
    # nodes of a density between the clusters, with next to no mass, link nothing
    angles = np.linspace(0, 2 * np.pi, 200, endpoint=False)
    mass = np.where(np.abs(np.sin(angles)) > 0.99, 1.0, 1e-12)
    assert cluster_count(tkf.Tokens(on_circle(angles), mass / mass.sum())) == 2


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (lambda: tkf.phases("run", WORKED), "`trajectory` must be a Trajectory"),
        (lambda: tkf.phases(off_e2(np.arange(3.0), lambda t: t), B), "`weights` must be an AttentionWeights"),
        (lambda: tkf.phases(off_e2(np.zeros(1), lambda t: t), WORKED), "`trajectory` must hold at least two"),
        (
            lambda: tkf.phases(off_e2(np.arange(3.0), lambda t: t), tkf.AttentionWeights.identity(3)),
            "`weights` must have the dimension 2",
        ),
        (
            lambda: tkf.phases(off_e2(np.arange(3.0), lambda t: np.where(t > 1, np.nan, t)), WORKED),
            r"`trajectory` must hold finite tokens, but was not, at snapshot \[2\]",
        ),
    ],
)
def test_bad_input_is_one_sentence(bad, sentence):
    with pytest.raises(tkf.InputError, match="^" + sentence):
        bad()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("b", "v", "beta", "turn"),
    [
        ((0.3, 1.5), (1.2, 0.4), 200.0, 0.0),
        ((0.5, 1.0), (0.9, 0.6), 50.0, 0.0),
        ((0.4, 2), (1, 0.4), 300.0, 0.7),
    ],
)
def test_phases_of_other_weights_and_laws(b, v, beta, turn):
    """Weights on which no constant of `phases` was chosen: all four phases, and the end at the rates of V.

    At an eigenvector of V the mean of a cluster approaches at v1 − v2, deviations from it fall at v1: where
    clusters arrive from both sides (the last case) it is the deviations that are seen.
    """
    R = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    weights = tkf.AttentionWeights(R @ np.diag(b) @ R.T, R @ np.diag(v) @ R.T)
    tokens = tkf.initial.circle_density(lambda a: 1 + 0.4 * np.cos(a - 0.3) + 0.2 * np.sin(2 * a), 600)
    run = tkf.simulate(
        tkf.SoftmaxAttention(weights, beta), tokens, np.linspace(0, 60, 121), tkf.Adaptive(1e-6, 1e-8)
    )
    found = tkf.phases(run, weights)
    assert names(found) == ["concentration", "metastable", "escape", "terminal"]
    assert 0.98 * (v[0] - v[1]) < found.get("terminal").rate < 1.02 * v[0]
    assert found.get("terminal").to_end < 1e-3
