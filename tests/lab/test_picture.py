"""What is drawn: where the eigenspaces are, what their ends say, how the predicted line runs."""

from types import SimpleNamespace

import numpy as np
import pytest

from tokenfield.lab.app import Lab
from tokenfield.lab.colouring import COLOURINGS, LIMIT_END_COLOURS, colouring
from tokenfield.lab.observer import Observer
from tokenfield.lab.panel import _log10, _prediction
from tokenfield.lab.scene import Scene
from tokenfield.lab.worker import _caveats
from tokenfield.laws import initial
from tokenfield.laws.tokens import Tokens
from tokenfield.models.weights import AttentionWeights
from tokenfield.solvers.ode import Adaptive, RungeKutta4


class Anything:
    """A server whose every call is kept and answered with something that takes every value."""

    def __init__(self, calls):
        object.__setattr__(self, "calls", calls)

    def __getattr__(self, name):
        def call(*arguments, **named):
            self.calls.append((name, arguments))
            return Anything(self.calls)

        return Anything(self.calls) if name in ("scene", "initial_camera") else call

    def __setattr__(self, name, value):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def values(self):
        return []


def drawn(weights, x, **look):
    """A scene with these tokens, its labels with their places."""
    calls = []
    scene = Scene(Anything(calls))
    for name, value in look.items():
        setattr(scene, name, value)
    observer = Observer(Tokens(x), weights, 1.0)
    scene.set(observer.stage)
    labels = {call[1][1]: call for call in calls if call[0] == "add_label"}
    return scene, observer, labels


#: E is ±e2, V's direction e1; a quarter of the tokens is on the side of −e2.
DIAGONAL = AttentionWeights(np.diag([0.5, 2.0, 1.0]), np.diag([1.0, 0.5, 0.3]))
SIDES = np.array([[0.6, 0.8, 0.0], [0.0, 0.8, 0.6], [-0.6, 0.8, 0.0], [0.6, -0.8, 0.0]])


def test_the_ends_say_how_much_goes_where_and_colours_tell_the_same():
    scene, observer, labels = drawn(DIAGONAL, SIDES)
    plus = scene.stage.limit_basis[1, 0]  # e2 or −e2 is called +p
    share = 75 if plus > 0 else 25
    assert any(f"Π sends {share}% here (+p)" in text for text in labels)
    assert any(f"Π sends {100 - share}% here (−p)" in text for text in labels)
    found = colouring(COLOURINGS[0], observer.stage, observer.observe(0.0, SIDES))
    np.testing.assert_array_equal(found.values, SIDES[:, 1] * plus < 0)
    first, second = (tuple(int(c[k : k + 2], 16) for k in (1, 3, 5)) for c in LIMIT_END_COLOURS)
    expected = [first if y * plus > 0 else second for y in SIDES[:, 1]]
    np.testing.assert_array_equal(found.rgb, expected)


def test_projections_above_three_dimensions():
    d = 6
    V, B = np.linspace(1, 0.5, d), np.array([0.1, 0.1, 0.1, 0.1, 5.0, 0.1])
    weights = AttentionWeights(np.diag(B), np.diag(V))
    x = np.asarray(initial.uniform(50, d, 0).x)
    scene, *_ = drawn(weights, x)
    # E = ±e5 points along the first axis of the picture, V's direction e1 along the second
    np.testing.assert_allclose(np.abs(scene._map[4]), [1, 0, 0], atol=1e-12)
    np.testing.assert_allclose(np.abs(scene._map[0]), [0, 1, 0], atol=1e-12)
    chosen, *_ = drawn(weights, x, projection="axes", axes_text="6, 2, 3")
    np.testing.assert_array_equal(chosen._map, np.eye(d)[:, [5, 1, 2]])
    # tokens that fill three directions only are seen whole
    flat = np.zeros((50, d))
    flat[:, [1, 3, 5]] = np.asarray(initial.uniform(50, 3, 0).x)
    principal, observer, _ = drawn(weights, flat, projection="principal directions")
    frame = observer.observe(0.0, flat)
    principal.show(frame, colouring(COLOURINGS[0], observer.stage, frame))
    np.testing.assert_allclose(np.linalg.norm(flat @ principal._map, axis=1), 1, atol=1e-6)


def test_the_predicted_line_starts_on_the_curve_and_falls_at_the_rate():
    t = np.linspace(0, 10, 101)
    line = _prediction(t, 0.8 * np.exp(-0.3 * t), 0.25)
    np.testing.assert_allclose(line, 0.8 * np.exp(-0.25 * t))
    assert np.all(np.isnan(_prediction(t, np.ones(101), None)))
    assert np.isnan(_log10(np.array([1e-9]))[0]) and _log10(np.array([0.01]))[0] == -2


@pytest.mark.parametrize(
    ("ts", "log"),
    [(np.linspace(0, 30, 301), False), (np.append(0, np.geomspace(1e-3, 10, 200)), True), ([0.0], False)],
)
def test_curves_over_log_spaced_times_have_a_logarithmic_axis(ts, log):
    lab = SimpleNamespace(session=SimpleNamespace(ts=np.asarray(ts)))
    assert Lab._log(lab) is log


def test_the_page_says_what_is_rough_and_what_takes_long():
    assert _caveats(Adaptive(rtol=1e-6, atol=1e-8), 10**5, 3) == []
    assert _caveats(Adaptive(rtol=1e-4, atol=1e-8), 10**5, 3) == ["a step may be off by 0.0001"]
    (slow,) = _caveats(RungeKutta4(0.05), 10**5, 4)
    assert "all 100,000² pairs" in slow and "72 seconds a step" in slow
    assert _caveats(RungeKutta4(0.05), 1000, 64) == []
