"""The verb: what is saved, what is reported, gradients, batches, merging, trouble."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tokenfield as tkf


def identity(d, beta=2.0):
    return tkf.SoftmaxAttention(tkf.AttentionWeights.identity(d), beta)


def test_snapshots_and_measurements_at_their_times():
    tokens, ts = tkf.initial.uniform(8, 3, 0), np.linspace(0, 2, 9)
    full = tkf.simulate(identity(3), tokens, ts)
    part = tkf.simulate(
        identity(3),
        tokens,
        ts,
        snapshots=[0, -1, 4],
        measure={"R": tkf.order_parameter, "mean": lambda t: t.moments().mean},
    )
    assert full.x.shape == (9, 8, 3)
    np.testing.assert_array_equal(part.snapshot_ts, ts[[0, 4, 8]])
    np.testing.assert_array_equal(part.x, full.x[[0, 4, 8]])
    np.testing.assert_allclose(part.measured["R"], full.measure(tkf.order_parameter), atol=1e-15)
    assert part.measured["mean"].shape == (9, 3)
    none = tkf.simulate(identity(3), tokens, ts, snapshots=[], measure={"R": tkf.order_parameter})
    assert none.x.shape == (0, 8, 3)
    np.testing.assert_array_equal(none.measured["R"], part.measured["R"])


def test_a_trajectory_says_what_made_it_and_what_it_cost():
    run = tkf.simulate(identity(2), tkf.Tokens(np.eye(2)), [0, 1.0])
    assert run.complete
    assert run.status == "reached t = 1 as asked"
    assert run.inputs["model"]["kind"] == "SoftmaxAttention"
    assert run.inputs["model"]["beta"] == 2.0
    assert run.inputs["solver"] == {"kind": "Adaptive", "rtol": 1e-8, "atol": 1e-10, "method": "tsit5"}
    stats = run.stats
    assert stats["evaluations"] == 6 * (stats["steps"] + stats["rejected"]) + 3
    assert stats["seconds"] > 0
    assert run.dataset().x.dims == ("snapshot", "token", "dim")


@pytest.mark.slow
def test_evaluations_are_counted_right():
    """The reported number is how often the field was really evaluated."""
    count = 0

    class Counting(tkf.SoftmaxAttention):
        def output(self, x, tokens, sums, rows):
            def tick(_):
                nonlocal count
                count += 1

            jax.debug.callback(tick, x[0, 0])
            return super().output(x, tokens, sums, rows)

    model = Counting(tkf.AttentionWeights.identity(3), 4.0)
    for solver in (tkf.Adaptive(), tkf.Adaptive(method="dopri8"), tkf.RungeKutta4(0.1), tkf.Layers(0.1)):
        count = 0
        run = tkf.simulate(model, tkf.initial.uniform(6, 3, 0), [0, 1.0], solver)
        jax.effects_barrier()
        # shapes of a run are found by tracing, which evaluates nothing
        assert count == run.stats["evaluations"]


def test_saved_times_do_not_change_the_steps():
    few = tkf.simulate(identity(3, 9.0), tkf.initial.uniform(20, 3, 0), [0, 5.0])
    many = tkf.simulate(identity(3, 9.0), tkf.initial.uniform(20, 3, 0), np.linspace(0, 5, 300))
    assert few.stats["steps"] == many.stats["steps"]
    np.testing.assert_array_equal(few.x[-1], many.x[-1])


def test_log_times_reach_both_ends():
    ts = tkf.log_times(1e-2, 1e4, 7)
    np.testing.assert_allclose(ts, [0, 1e-2, 1e-1, 1, 1e1, 1e2, 1e3, 1e4])
    run = tkf.simulate(identity(2, 5.0), tkf.Tokens(np.eye(2)), ts)
    np.testing.assert_array_equal(run.ts, ts)


def test_rotations_and_permutations_commute_with_a_run():
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    B, V = tkf.ensembles.gaussian(3, 0), tkf.ensembles.gaussian(3, 1)
    tokens = tkf.initial.uniform(10, 3, 2)
    run = tkf.simulate(tkf.SoftmaxAttention(tkf.AttentionWeights(B, V), 4.0), tokens, [0, 3.0])
    turned = tkf.AttentionWeights(turn @ B @ turn.T, turn @ V @ turn.T)
    other = tkf.simulate(tkf.SoftmaxAttention(turned, 4.0), tokens.push(lambda x: x @ turn.T), [0, 3.0])
    np.testing.assert_allclose(other.x[-1], run.x[-1] @ turn.T, atol=1e-10)
    assert other.stats["steps"] == run.stats["steps"]
    order = np.random.default_rng(1).permutation(10)
    shuffled = tkf.simulate(
        tkf.SoftmaxAttention(tkf.AttentionWeights(B, V), 4.0), tkf.Tokens(tokens.x[order]), [0, 3.0]
    )
    np.testing.assert_allclose(shuffled.x[-1], run.x[-1][order], atol=1e-10)


@pytest.mark.parametrize(
    ("solver", "kind"),
    [
        (tkf.Layers(0.1), tkf.UnnormalisedAttention),
        pytest.param(tkf.Adaptive(rtol=1e-11), tkf.SoftmaxAttention, marks=pytest.mark.slow),
        pytest.param(tkf.RungeKutta4(0.1), tkf.SoftmaxAttention, marks=pytest.mark.slow),
        pytest.param(
            tkf.Adaptive(rtol=1e-12, method="dopri8"), tkf.UnnormalisedAttention, marks=pytest.mark.slow
        ),
    ],
)
def test_gradients_agree_with_finite_differences(solver, kind):
    """Of a scalar of the last and an interpolated time, in B, V, β and x0."""
    a = jnp.asarray(np.random.default_rng(0).normal(size=(7, 3)))

    def loss(parameters):
        B, V, beta, x0 = parameters
        run = tkf.simulate(
            kind(tkf.AttentionWeights(B, V), beta), tkf.Tokens(x0), jnp.array([0, 0.3, 1.0]), solver
        )
        return jnp.sum(a * run.x[-1]) + jnp.sum(run.x[1] ** 3)

    at = (
        tkf.ensembles.gaussian(3, 1),
        tkf.ensembles.gaussian(3, 2),
        jnp.array(1.7),
        tkf.initial.uniform(7, 3, 3).x,
    )
    value, gradient = jax.jit(jax.value_and_grad(loss))(at)
    rng, eps, f = np.random.default_rng(4), 1e-5, jax.jit(loss)
    for k in range(4):
        v = rng.normal(size=at[k].shape)
        if k == 3:  # along the sphere
            v = np.asarray(tkf.sphere.project(at[k], jnp.asarray(v)))

        def moved(s, k=k, v=v):
            new = at[k] + s * eps * v
            new = tkf.sphere.retract(new) if k == 3 else new
            return f(tuple(new if i == k else p for i, p in enumerate(at)))

        measured = (moved(1) - moved(-1)) / (2 * eps)
        assert float(jnp.vdot(gradient[k], v)) == pytest.approx(float(measured), rel=2e-6, abs=1e-7)
    assert np.isfinite(value)


@pytest.mark.slow
def test_batches_of_runs_agree_with_single_runs():
    betas, keys = jnp.array([0.0, 1.0, 6.0]), range(3)
    xs = jnp.stack([tkf.initial.uniform(12, 2, k).x for k in keys])

    def last(beta, x):
        run = tkf.simulate(
            identity(2, beta), tkf.Tokens(x), [0, 1.0, 2.0], measure={"R": tkf.order_parameter}
        )
        return run.x[-1], run.measured["R"]

    x, order = jax.jit(jax.vmap(last))(betas, xs)
    for k in keys:
        alone = tkf.simulate(identity(2, betas[k]), tkf.Tokens(xs[k]), [0, 1.0, 2.0])
        np.testing.assert_allclose(x[k], alone.x[-1], atol=1e-7)
        np.testing.assert_allclose(order[k], alone.measure(tkf.order_parameter), atol=1e-7)


def test_a_whole_trajectory_can_leave_jit():
    run = eqx.filter_jit(lambda b: tkf.simulate(identity(2, b), tkf.Tokens(np.eye(2)), [0, 1.0]))(3.0)
    assert run.x.shape == (2, 2, 2)


# -- merging


@pytest.mark.slow
def test_merging_changes_little_and_says_how_much():
    tokens, ts = tkf.initial.uniform(60, 3, 0), np.array([0, 5.0, 20.0, 60.0])
    plain = tkf.simulate(identity(3, 9.0), tokens, ts)
    merged = tkf.simulate(identity(3, 9.0), tokens, ts, merge_angle=1e-3)
    assert merged.x.shape == plain.x.shape
    assert merged.stats["tokens_left"] < 30
    assert 0 < merged.stats["merge_distance"] < 1e-3
    assert merged.stats["evaluations"] < plain.stats["evaluations"]
    np.testing.assert_allclose(merged.x, plain.x, atol=2e-3)


@pytest.mark.slow
def test_merged_metastable_run_meets_the_two_token_law():
    """Two clusters of 20 behave as two tokens: the time to ρ = .9 at β = 12 is that of theory §4."""
    beta, rho1 = 12.0, 0.9
    t = tkf.theory.two_tokens(0.0, rho1, beta)
    rng = np.random.default_rng(0)
    x = np.repeat(np.eye(2), 20, axis=0)
    pairs = 1e-4 * np.repeat(rng.normal(size=(20, 1)), 2, axis=0) * np.tile([[1.0], [-1.0]], (20, 1))
    x = x + pairs * np.repeat([[0.0, 1.0], [-1.0, 0.0]], 20, axis=0)
    tokens = tkf.Tokens(x / np.linalg.norm(x, axis=1, keepdims=True))
    run = tkf.simulate(identity(2, beta), tokens, [0, t], merge_angle=1e-2)
    assert run.stats["tokens_left"] == 2
    assert run.stats["steps"] < 500
    rho = float(run.x[-1, 0] @ run.x[-1, -1])
    pace = (1 + np.exp(beta * (1 - rho1))) / (2 * (1 - rho1**2))
    assert abs(rho - rho1) * pace / t < 1e-6


# -- trouble


def test_trouble_is_a_sentence_with_what_was_finished():
    """The velocity has a pole at ⟨x, y⟩ = .99, which the two tokens are drawn into at t = .66."""
    model = tkf.InteractionFlow(lambda s: -jnp.log(0.99 - s), np.eye(2))
    tokens, ts = tkf.Tokens([[1.0, 0.0], [0.0, 1.0]]), np.linspace(0, 50, 101)
    with pytest.raises(tkf.RunError, match=r"^stopped at t = 0\.66.*: .* not finite or not smooth") as caught:
        tkf.simulate(model, tokens, ts)
    part = caught.value.trajectory
    assert not part.complete
    np.testing.assert_array_equal(part.ts, ts[:2])
    assert tkf.simulate(model, tokens, ts, strict=False).x.shape == (2, 2, 2)


def test_fixed_steps_that_blow_up_stop_too():
    model = tkf.InteractionFlow(lambda s: jnp.exp(800 * s), np.eye(2))
    with pytest.raises(tkf.RunError, match="^stopped at t = 0: the next step gave"):
        tkf.simulate(model, tkf.Tokens([[1.0, 0.0], [0.6, 0.8]]), [0, 1.0], tkf.RungeKutta4(0.1))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"ts": [0, 2.0, 1.0]}, r"`ts` must be increasing, but ts\[2\] = 1 follows ts\[1\] = 2"),
        ({"ts": [0, 0.0]}, "`ts` must be increasing"),
        ({"ts": [0, np.nan]}, "`ts` must be finite, but was"),
        ({"ts": [0, np.inf]}, "`ts` must be finite, but was"),
        ({"ts": []}, r"`ts` must be a list of times, but was of shape \(0,\)"),
        ({"ts": -3.0}, "`ts` must be a list of times or one positive final time, but was -3.0"),
        ({"tokens": np.eye(2)}, "`tokens` must be a Tokens, but was ndarray"),
        ({"model": "softmax"}, "`model` must be a Model, but was str"),
        ({"solver": "rk4"}, "`solver` must be a Solver, but was str"),
        (
            {"summation": "fast"},
            "`summation` must be one of 'auto', 'direct', 'circle', 'harmonic', 'merged', but was 'fast'",
        ),
        ({"snapshots": "all"}, "`snapshots` must be a list of indices into ts, but was 'all'"),
        ({"snapshots": [[0], [0, 1]]}, "`snapshots` must be a list of indices into ts"),
        ({"snapshots": [0.5]}, "`snapshots` must be a list of indices into ts"),
        ({"summation": ["auto"]}, "`summation` must be one of 'auto', 'direct', 'circle'"),
        ({"merge_angle": "small"}, "`merge_angle` must be a number, but was 'small'"),
        ({"measure": {"a": 3}}, r"`measure\['a'\]` must be a function of the tokens, but was 3"),
        ({"snapshots": [5]}, r"`snapshots` must be indices of the 2 times, but was \[5\]"),
        ({"tokens": tkf.Tokens(np.eye(3))}, "`tokens` must have the dimension 2 of the model, but was 3"),
        ({"merge_angle": -1.0}, r"`merge_angle` must lie between 0 and π/2, but was -1.0"),
        (
            {"measure": {"x": tkf.order_parameter}},
            "`measure` must not use the names x, radii, time, .*, but was 'x'",
        ),
    ],
)
def test_bad_input_is_one_sentence(change, sentence):
    arguments = {"model": identity(2), "tokens": tkf.Tokens(np.eye(2)), "ts": [0, 1.0]} | change
    with pytest.raises(tkf.InputError, match="^" + sentence):
        tkf.simulate(**arguments)


@pytest.mark.parametrize(
    ("times", "sentence"),
    [
        (("a", 1, 5), "`first` must be a number, but was 'a'"),
        ((0, 1, 5), "`first` must be positive and finite, but was 0"),
        ((1, None, 5), "`last` must be a number, but was None"),
        ((1, 1, 5), "`last` must be finite and greater than first = 1, but was 1"),
        ((1, 2, 3.5), "`count` must be a whole number, at least 2, but was 3.5"),
        ((1, 2, 1), "`count` must be a whole number, at least 2, but was 1"),
    ],
)
def test_bad_log_times_are_one_sentence(times, sentence):
    with pytest.raises(tkf.InputError, match="^" + sentence):
        tkf.log_times(*times)


@pytest.mark.parametrize("name", ["store", "merge_angle"])
def test_what_does_not_go_under_jit_is_named(name, tmp_path):
    value = {"store": tmp_path / "run", "merge_angle": 0.1}[name]

    def last(beta):
        return tkf.simulate(identity(2, beta), tkf.Tokens(np.eye(2)), [0, 1.0], **{name: value}).x[-1]

    with pytest.raises(tkf.InputError, match=f"^`{name}` must not be used under jit, but was"):
        jax.jit(last)(1.0)


def test_snapshots_that_are_not_there():
    run = tkf.simulate(identity(2), tkf.Tokens(np.eye(2)), [0, 1.0], snapshots=[])
    with pytest.raises(
        tkf.InputError, match="^`trajectory` must hold snapshots to be measured, but was without"
    ):
        run.measure(tkf.order_parameter)
    with pytest.raises(tkf.InputError, match="^`k` must be an index of the 0 snapshots, but was 0"):
        run.tokens(0)
    run = tkf.simulate(identity(2), tkf.Tokens(np.eye(2)), [0, 1.0])
    for bad in (2, -3, 0.5, "a", None, [0], int):
        with pytest.raises(tkf.InputError, match="^`k` must be an index of the 2 snapshots, but was"):
            run.tokens(bad)
    with pytest.raises(tkf.InputError, match="^`fn` must be a function of the tokens, but was None"):
        run.measure(None)
    with pytest.raises(tkf.InputError, match="^`fn` must return real numbers, but was returning None"):
        run.measure(lambda tokens: None)
    assert run.tokens(np.int64(-1)).n == run.tokens(jnp.asarray(1)).n == 2


def test_progress_can_be_shown_and_switched_off(capsys):
    tkf.simulate(identity(2), tkf.Tokens(np.eye(2)), [0, 1.0])
    assert capsys.readouterr().out == ""
    tkf.simulate(identity(2), tkf.Tokens(np.eye(2)), [0, 1.0], progress=True)
    assert "steps" in capsys.readouterr().out
