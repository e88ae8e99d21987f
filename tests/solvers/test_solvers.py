"""Every solver on every exact problem; measured order against declared order; long metastable times."""

from typing import ClassVar

import equinox as eqx
import numpy as np
import pytest

import tokenfield as tkf
from tests.problems import PROBLEMS, Problem, equiangular, zero_temperature
from tokenfield.solvers.ode import METHODS, Solver

SOLVERS = {
    # name: (solver, error allowed on every problem)
    "tsit5": (tkf.Adaptive(), 1e-7),
    "dopri8": (tkf.Adaptive(rtol=1e-11, atol=1e-12, method="dopri8"), 1e-9),
    "kvaerno5": (tkf.Adaptive(method="kvaerno5"), 3e-7),
    "rk4": (tkf.RungeKutta4(0.02), 2e-7),
}
#: Problems on which every solver is tried every time.
FEW = ("two-tokens-5.0",)


def every_solver_on_every_problem():
    for name in SOLVERS:
        for problem in PROBLEMS:
            # tsit5, the default, on all but laws that differ in d only; the others on few
            quick = problem.name in FEW or (
                name == "tsit5" and problem.name not in ("poisson-3", "lorentz-3")
            )
            marks = [] if quick else [pytest.mark.slow]
            yield pytest.param(problem, name, id=f"{name}-{problem.name}", marks=marks)


@pytest.mark.parametrize(("problem", "name"), list(every_solver_on_every_problem()))
def test_meets_the_exact_solution(problem, name):
    solver, allowed = SOLVERS[name]
    assert problem.error(solver) < allowed


@pytest.mark.parametrize(
    "problem", [pytest.param(p, id=p.name, marks=() if p.name in FEW else pytest.mark.slow) for p in PROBLEMS]
)
def test_layers_converge_to_the_exact_solution(problem):
    """Error falls like the step, and extrapolation to step 0 meets the exact values."""
    gaps = np.diff(problem.ts)
    base = gaps.min() if np.allclose(gaps % gaps.min(), 0) else 0.1  # divides every gap
    step = base / np.ceil(base / 0.002)
    found = [
        tkf.simulate(problem.model, problem.tokens, problem.ts, tkf.Layers(h)).measure(problem.observe)
        for h in (step, step / 2)
    ]
    coarse, fine = (np.abs(f - problem.exact).max() for f in found)
    assert fine == pytest.approx(coarse / 2, rel=0.05)
    assert np.abs(2 * found[1] - found[0] - problem.exact).max() < 0.05 * fine


class Fixed(Solver):
    """An adaptive method's formula with fixed steps, to measure its order."""

    step: float
    method: str = eqx.field(static=True)
    lands: ClassVar[bool] = True
    controller: ClassVar[None] = None
    stages: ClassVar[None] = None

    @property
    def order(self):
        return METHODS[self.method].order

    @property
    def scheme(self):
        return tkf.Adaptive(method=self.method, rtol=1e-13, atol=0.0).scheme

    def first_step(self, gap):
        return tkf.RungeKutta4(self.step).first_step(gap)


@pytest.mark.parametrize(
    ("make", "steps", "above"),
    [
        (tkf.Layers, (1 / 64, 1 / 128), 0.2),
        (tkf.RungeKutta4, (1 / 8, 1 / 16), 0.2),
        # its leading error constant is so small that the next order still shows at these steps
        (lambda h: Fixed(h, "tsit5"), (1 / 4, 1 / 8), 1.2),
        (lambda h: Fixed(h, "dopri8"), (1 / 2, 1 / 4), 0.3),
        pytest.param(lambda h: Fixed(h, "kvaerno5"), (1 / 4, 1 / 8), 0.2, marks=pytest.mark.slow),
    ],
    ids=["layers", "rk4", "tsit5", "dopri8", "kvaerno5"],
)
def test_measured_order_is_the_declared_one(make, steps, above):
    """The error at a fixed time falls like step^order, against a closed form in R^4."""
    problem = zero_temperature(4)
    ends = Problem(
        "", problem.model, problem.tokens, problem.ts[[0, -1]], problem.observe, problem.exact[[0, -1]]
    )
    coarse, fine = (ends.error(make(h)) for h in steps)
    order = make(steps[0]).order
    assert order - 0.3 < np.log2(coarse / fine) < order + above


def test_runge_kutta_is_not_euler_in_disguise():
    """A published "RK4" was algebraically Euler (peers.md): halving the step must gain far more than 2."""
    problem = equiangular(4, 1.0, 0.1, "softmax", [0.0, 1.0])
    assert problem.error(tkf.RungeKutta4(0.25)) > 12 * problem.error(tkf.RungeKutta4(0.125))


@pytest.mark.slow
@pytest.mark.parametrize("name", SOLVERS)
def test_all_end_on_the_sphere(name):
    model = tkf.SoftmaxAttention(tkf.AttentionWeights(*tkf.ensembles.gaussian(4, 0, heads=2)), 3.0)
    x = tkf.simulate(model, tkf.initial.uniform(9, 4, 0), [0, 0.5, 2.0], SOLVERS[name][0]).x
    np.testing.assert_allclose(np.linalg.norm(x, axis=-1), 1, atol=4e-16)


@pytest.mark.parametrize("beta", [5.0, 12.0, 20.0])
@pytest.mark.parametrize("method", ["tsit5", "dopri8"])
def test_metastable_time_takes_few_steps(beta, method):
    """theory §4: at β = 20 two tokens need t = 1.2e7; relative error of that time below 1e-6."""
    rho1 = 0.9
    t = tkf.theory.two_tokens(0.0, rho1, beta)
    model = tkf.SoftmaxAttention(tkf.AttentionWeights.identity(2), beta)
    run = tkf.simulate(model, tkf.Tokens(np.eye(2)), [0, t], tkf.Adaptive(method=method))
    rho = float(run.x[-1, 0] @ run.x[-1, 1])
    pace = (1 + np.exp(beta * (1 - rho1))) / (2 * (1 - rho1**2))
    assert run.stats["steps"] + run.stats["rejected"] < 1000
    assert abs(rho - rho1) * pace < 1e-6 * t


def test_error_control_sees_every_token():
    """One token in fast motion among 10^4 at rest: a mean over tokens would let it go by."""
    n = 10_000
    lone = tkf.initial.uniform(1, 2, 0).x
    x = np.concatenate([lone, np.tile([[1.0, 0.0]], (n - 1, 1))])
    V = np.array([[1.0, 0.0], [0.0, -30.0]])
    weights = tkf.AttentionWeights(np.eye(2), V)
    run = tkf.simulate(tkf.ZeroTemperature(weights), tkf.Tokens(x), [0, 0.3])
    exact = tkf.theory.zero_temperature(lone, V, [0, 0.3])[-1]
    assert np.abs(run.x[-1, 0] - exact).max() < 1e-7


@pytest.mark.slow
def test_interpolated_times_are_as_good_as_steps():
    """Times inside a step are interpolated; they meet the exact curve like the ends do."""
    ts = np.linspace(0, 4, 401)
    problem = equiangular(5, 2.0, 0.0, "softmax", list(ts))
    run = tkf.simulate(problem.model, problem.tokens, ts)
    assert run.stats["steps"] < 100
    assert np.abs(run.measure(problem.observe) - problem.exact).max() < 1e-7


def test_saved_times_of_the_high_order_method_have_its_accuracy():
    """Its interpolant would lose two to three digits, so its steps end on the saved times."""
    ts = np.linspace(0, 4, 21)
    problem = equiangular(5, 2.0, 0.0, "softmax", list(ts))
    run = tkf.simulate(problem.model, problem.tokens, ts, tkf.Adaptive(1e-12, 1e-13, method="dopri8"))
    assert np.abs(run.measure(problem.observe) - problem.exact).max() < 3e-12


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (lambda: tkf.Layers("thin"), "`step` must be a number, but was 'thin'"),
        (lambda: tkf.Adaptive(rtol=None), "`rtol` must be a number, but was None"),
        (lambda: tkf.Adaptive(method=["tsit5"]), "`method` must be one of tsit5"),
        (lambda: tkf.Layers(0), "`step` must be positive and finite, but was 0"),
        (lambda: tkf.RungeKutta4(np.nan), "`step` must be positive and finite, but was nan"),
        (lambda: tkf.Adaptive(rtol=-1), "`rtol` must be at least 0 and finite, but was -1"),
        (lambda: tkf.Adaptive(rtol=0, atol=0), "`rtol` must leave rtol"),
        (
            lambda: tkf.Adaptive(method="rk45"),
            "`method` must be one of tsit5, dopri8, kvaerno5, but was 'rk45'",
        ),
    ],
)
def test_bad_settings_are_one_sentence(bad, sentence):
    with pytest.raises(tkf.InputError, match="^" + sentence.replace("(", r"\(")):
        bad()


def test_layers_refuse_times_between_layers():
    model = tkf.SoftmaxAttention(tkf.AttentionWeights.identity(2), 1.0)
    with pytest.raises(tkf.InputError, match=r"whole multiples of the layer step 0\.3"):
        tkf.simulate(model, tkf.Tokens(np.eye(2)), [0, 1.0], tkf.Layers(0.3))


def test_stiff_method_refuses_clouds_it_cannot_factor():
    model = tkf.SoftmaxAttention(tkf.AttentionWeights.identity(3), 1.0)
    with pytest.raises(tkf.InputError, match="`method` must not be 'kvaerno5' for 6000 coordinates"):
        tkf.simulate(model, tkf.initial.uniform(2000, 3, 0), [0, 1.0], tkf.Adaptive(method="kvaerno5"))


@pytest.mark.parametrize("kind", [tkf.SoftmaxAttention, tkf.UnnormalisedAttention])
def test_a_layer_is_the_discrete_network(kind):
    """x ← (x + η A)/|x + η A| with the attention output A itself, written out with loops."""
    beta, step = 1.3, 0.25
    B, V = np.asarray(tkf.ensembles.gaussian(3, 0)), np.asarray(tkf.ensembles.gaussian(3, 1))
    tokens = tkf.initial.uniform(5, 3, 2)
    x = np.asarray(tokens.x)
    for _ in range(3):
        p = np.exp(beta * x @ B @ x.T) / 5
        if kind is tkf.SoftmaxAttention:
            p = p / p.sum(axis=1, keepdims=True)
        x = x + step * (p @ x) @ V.T
        x = x / np.linalg.norm(x, axis=1, keepdims=True)
    run = tkf.simulate(kind(tkf.AttentionWeights(B, V), beta), tokens, [0, 3 * step], tkf.Layers(step))
    np.testing.assert_allclose(run.x[-1], x, atol=1e-14)
