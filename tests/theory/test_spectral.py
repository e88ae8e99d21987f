"""Where tokens end at zero temperature, against matrix exponentials and in many kinds of spectra."""

import numpy as np
import pytest
from scipy import integrate, linalg
from scipy.stats import ortho_group

import tokenfield as tkf
from tokenfield import theory

WORKED = tkf.AttentionWeights(np.diag([0.5, 2.0]), np.diag([1.0, 0.5]))


def weights(D, B):
    """Attention weights with the given D = V Bᵀ."""
    B = np.asarray(B, dtype=float)
    return tkf.AttentionWeights(B, np.asarray(D) @ np.linalg.inv(B).T)


def similar(blocks, key, size=0.5):
    """S blockdiag(blocks) S⁻¹ with a random, mildly ill-conditioned S."""
    M = linalg.block_diag(*blocks)
    S = np.eye(len(M)) + size * np.random.default_rng(key).normal(size=M.shape) / np.sqrt(len(M))
    return S @ M @ np.linalg.inv(S)


def after(D, x, tau):
    """e^{Dτ}x/|e^{Dτ}x| of rows, by the matrix exponential."""
    shift = np.max(np.linalg.eigvals(D).real)
    y = x @ linalg.expm((D - shift * np.eye(len(D))) * tau).T
    return y / np.linalg.norm(y, axis=1, keepdims=True)


def cloud(n, d, key=0):
    return tkf.initial.uniform(n, d, key)


# --- where tokens end


def test_worked_case():
    """Theory §2.6: D = diag(.5, 1), E = span e2, and tokens end on their side of it."""
    found = theory.limit(WORKED)
    assert (found.kind, found.dimension, found.gap, found.eigenvalue) == ("fixed", 1, 0.5, 1.0)
    np.testing.assert_allclose(found.projector, np.diag([0.0, 1.0]), atol=1e-15)
    tokens = cloud(20, 2)
    side = np.sign(np.asarray(tokens.x)[:, 1:])
    np.testing.assert_allclose(found.push(tokens).x, side * [0.0, 1.0], atol=1e-15)


def test_the_law_keeps_its_weights_and_masses_of_half_spheres():
    w = np.random.default_rng(0).dirichlet(np.ones(30))
    tokens = tkf.Tokens(cloud(30, 3).x, w)
    pushed = theory.limit(weights(np.diag([2.0, 1.0, -3.0]), np.eye(3))).push(tokens)
    up = np.asarray(pushed.x)[:, 0] > 0
    assert np.sum(w[up]) == pytest.approx(np.sum(w[np.asarray(tokens.x)[:, 0] > 0]))


@pytest.mark.parametrize("key", range(4))
@pytest.mark.parametrize(
    "blocks",
    [
        [[[2.0]], [[1.0]], [[-1.0]]],
        [[[-1.0]], [[-2.0]], [[-2.5]], [[-4.0]]],
        [2 * np.eye(2), np.eye(2)],
        [[[1.0]], [[0.2, -3.0], [3.0, 0.2]]],
    ],
)
def test_fixed_limit_of_general_matrices_is_the_end_of_the_orbits(blocks, key):
    D = similar(blocks, key)
    tokens = cloud(12, len(D), key)
    found = theory.limit(weights(D, tkf.ensembles.gaussian(len(D), key)))
    assert found.kind == "fixed" and found.dimension == len(blocks[0])
    np.testing.assert_allclose(found.push(tokens).x, after(D, np.asarray(tokens.x), 50.0), atol=1e-9)


@pytest.mark.parametrize("key", range(3))
def test_projector_commutes_and_is_oblique_from_left_eigenvectors(key):
    D = similar([[[2.0]], [[1.0]], [[0.5]]], key)
    found = theory.dominant(D)
    P = found.projector
    values, left, right = linalg.eig(D, left=True)
    top = np.argmax(values.real)
    y, x = left[:, top].real, right[:, top].real
    np.testing.assert_allclose(P, np.outer(x, y) / (y @ x), atol=1e-12)
    np.testing.assert_allclose(P @ D, D @ P, atol=1e-12)
    assert np.linalg.norm(P, 2) > 1.01  # oblique, or the test tests nothing
    np.testing.assert_allclose(found.basis.T @ found.basis, np.eye(1), atol=1e-14)
    np.testing.assert_allclose(P @ found.basis, found.basis, atol=1e-12)


def test_symmetric_projector_is_orthogonal_and_general_route_agrees():
    D = np.asarray(tkf.ensembles.with_spectrum([1.0, 1.0, 0.3, -2.0], 0))
    values, vectors = np.linalg.eigh(D)
    E = vectors[:, values > 0.9]
    np.testing.assert_allclose(theory.dominant(D).projector, E @ E.T, atol=1e-13)
    skewed = D.copy()
    skewed[0, 1] += 1e-11  # no longer symmetric to rounding: the ordered Schur form is used
    np.testing.assert_allclose(theory.dominant(skewed).projector, E @ E.T, atol=1e-9)


@pytest.mark.parametrize("blocks", [[[[2.0]], [[1.0]], [[0.5]]], [[[1.0, -2.0], [2.0, 1.0]], [[0.5]]]])
def test_rotating_the_matrices_rotates_the_limit(blocks):
    D, B = similar(blocks, 1), np.asarray(tkf.ensembles.gaussian(3, 3))
    plain = weights(D, B)
    R = ortho_group.rvs(3, random_state=0)
    turned = theory.limit(tkf.AttentionWeights(R @ B @ R.T, R @ np.asarray(plain.V) @ R.T))
    still = theory.limit(plain)
    np.testing.assert_allclose(turned.projector, R @ still.projector @ R.T, atol=1e-12)
    if still.period is not None:
        np.testing.assert_allclose(turned.period, still.period, rtol=1e-10)


def test_only_differences_of_eigenvalues_count():
    tokens = cloud(9, 3)
    D = similar([[[2.0]], [[1.0]], [[0.5]]], 0)
    low = theory.dominant(D - 7 * np.eye(3))
    assert low.eigenvalue == pytest.approx(-5.0)
    assert low.gap == pytest.approx(1.0)
    np.testing.assert_allclose(low.push(tokens).x, theory.dominant(D).push(tokens).x, atol=1e-12)


def test_near_degeneracy_follows_the_stated_tolerance():
    D = np.diag([1.0, 1.0 - 1e-9, 0.2])
    one = theory.dominant(D)
    assert one.dimension == 2 and one.tolerance == pytest.approx(1e-8)
    assert "2 of 3 eigenvalues dominant" in one.note and "within 1e-08 count as one" in one.note
    two = theory.dominant(D, tolerance=1e-10)
    assert two.dimension == 1 and two.gap == pytest.approx(1e-9, rel=1e-5)
    # the same from the general route
    skew = np.diag([1.0, 1.0 - 1e-9, 0.2]) + np.diag([0.0, 0.3], 1)
    assert theory.dominant(skew).dimension == 2
    assert theory.dominant(skew, tolerance=1e-10).dimension == 1


@pytest.mark.parametrize("D", [np.zeros((3, 3)), 2.5 * np.eye(3), -np.eye(3) + 1e-12 * np.diag([1.0, 0], 1)])
def test_multiples_of_the_identity_leave_tokens_alone(D):
    found = theory.dominant(D)
    tokens = cloud(5, 3)
    assert (found.kind, found.dimension, found.gap, found.lower) == ("fixed", 3, np.inf, None)
    np.testing.assert_allclose(found.push(tokens).x, tokens.x, atol=1e-12)


# --- tokens that miss E


def test_exceptional_tokens_go_to_the_next_eigenspace():
    D = np.diag([3.0, 2.0, 1.0])
    s = np.sqrt(0.5)
    tokens = tkf.Tokens([[0, s, s], [0.6, 0, 0.8], [0, 0, -1], [0, -s, s], [1e-6, 1.0, 0.0]])
    found = theory.dominant(D)
    np.testing.assert_array_equal(found.exceptional(tokens), [0, 2, 3])
    expected = [[0, 1, 0], [1, 0, 0], [0, 0, -1], [0, -1, 0], [1, 0, 0]]
    np.testing.assert_allclose(found.push(tokens).x, expected, atol=1e-15)


@pytest.mark.parametrize("key", range(3))
def test_exceptional_tokens_of_a_general_matrix(key):
    """Tokens in the sum of the lower eigenspaces; their orbits are computed within it, in its own basis."""
    M = np.diag([3.0, 2.0, 1.0, 0.5])
    S = np.eye(4) + 0.3 * np.random.default_rng(key).normal(size=(4, 4))
    y = np.random.default_rng(9).normal(size=(6, 4)) * [0.0, 1.0, 1.0, 1.0]
    y[3:, 1] = 0.0
    x = y @ S.T / np.linalg.norm(y @ S.T, axis=1, keepdims=True)
    end = np.where(np.arange(6)[:, None] < 3, np.sign(y[:, 1:2]) * S[:, 1], np.sign(y[:, 2:3]) * S[:, 2])
    end /= np.linalg.norm(end, axis=1, keepdims=True)
    found = theory.dominant(S @ M @ np.linalg.inv(S))
    tokens = tkf.Tokens(x)
    np.testing.assert_array_equal(found.exceptional(tokens), np.arange(6))
    np.testing.assert_allclose(found.push(tokens).x, end, atol=1e-10)


# --- defective


@pytest.mark.parametrize("m", [2, 3])
@pytest.mark.parametrize("key", range(5))
def test_jordan_block_is_found_after_a_change_of_basis(m, key):
    """Rounding splits such an eigenvalue by ε^{1/m}, far more than the tolerance."""
    J = np.eye(m) + np.diag(np.ones(m - 1), 1)
    D = similar([J, [[0.4]], [[-0.3]]], key)
    found = theory.dominant(D)
    assert (found.kind, found.dimension) == ("algebraic", m)
    assert found.eigenvalue == pytest.approx(1.0, abs=1e-10)
    assert found.gap == pytest.approx(0.6, abs=1e-10)
    assert "defective" in found.note


@pytest.mark.parametrize("m", [2, 3])
def test_algebraic_limit_is_the_end_of_the_orbits_and_is_approached_like_one_over_tau(m):
    """The orbit in closed form: S e^{Jτ}S⁻¹x with e^{Jτ} = e^{λτ}Σ(Nτ)^j/j!.

    A matrix exponential of D would not do: D is defective only up to rounding.
    """
    N = np.diag(np.linspace(0.5, 1.0, m - 1), 1)
    S = np.eye(m + 1) + 0.3 * np.random.default_rng(m).normal(size=(m + 1, m + 1))
    D = S @ linalg.block_diag(np.eye(m) + N, [[0.2]]) @ np.linalg.inv(S)
    tokens = cloud(8, m + 1)
    found = theory.dominant(D)
    assert found.kind == "algebraic"
    end = np.asarray(found.push(tokens).x)
    y = np.linalg.solve(S, np.asarray(tokens.x).T)[:m]

    def distance(tau):
        x = S[:, :m] @ linalg.expm(N * tau) @ y
        return np.linalg.norm(x / np.linalg.norm(x, axis=0) - end.T, axis=0)

    near, far = distance(1e4), distance(1e5)
    np.testing.assert_allclose(near / far, 10, rtol=0.05)
    assert np.max(far) < 0.001


def test_tokens_without_a_part_in_the_long_chain_follow_a_shorter_one():
    D = np.array([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    found = theory.dominant(D)
    tokens = tkf.Tokens([[-1.0, 0, 0], [-0.6, 0, 0.8], [-0.6, 0.8, 0], [0.6, -0.8, 0], [0, 0, 1]])
    np.testing.assert_allclose(
        found.push(tokens).x, [[-1, 0, 0], [-1, 0, 0], [1, 0, 0], [-1, 0, 0], [0, 0, 1]], atol=1e-12
    )


# --- rotating


@pytest.mark.parametrize("key", range(3))
def test_period_is_the_time_of_one_turn_of_the_flow(key):
    """x' = P_x D x/|Bᵀx| integrated from a point of E comes back after period.t, and not at half of it."""
    D = similar([[[0.3, -2.0], [0.5, 0.3]], [[-1.0]]], key)
    w = weights(D, tkf.ensembles.gaussian(3, key + 10))
    found, B = theory.limit(w), np.asarray(w.B)
    assert found.kind == "rotating" and found.period is not None
    assert found.period.tau == pytest.approx(2 * np.pi)  # ω = √(2·½) = 1
    assert found.eigenvalue == pytest.approx(0.3 + 1j)
    assert found.gap == pytest.approx(1.3)
    start = found.basis @ [0.6, 0.8]

    def slope(_, x):
        v = D @ x / np.linalg.norm(B.T @ x)
        return v - (x @ v) * x / (x @ x)

    T = found.period.t
    run = integrate.solve_ivp(slope, (0, T), start, "DOP853", [T / 2, T], rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(run.y[:, 0], -start, atol=1e-7)
    np.testing.assert_allclose(run.y[:, 1], start, atol=1e-7)


def test_period_of_a_flat_ellipse():
    """B = I: t = τ, however eccentric the orbit; B = diag(3, 1): mean of |Bᵀx| by a fine sum."""
    D = np.array([[0.0, -1e3], [1e-3, 0.0]])
    assert theory.limit(weights(D, np.eye(2))).period.t == pytest.approx(2 * np.pi, rel=1e-10)
    a = (np.arange(10**6) + 0.5) * 2 * np.pi / 10**6
    x, y = 1e3 * np.cos(a), np.sin(a)
    mean = np.mean(np.hypot(3 * x, y) / np.hypot(x, y))
    assert theory.limit(weights(D, np.diag([3.0, 1.0]))).period.t == pytest.approx(2 * np.pi * mean, rel=1e-9)


J = np.array([[0.0, -1.0], [1.0, 0.0]])
LONG = np.block([[J, np.eye(2)], [0 * J, J]])  # a defective pair


@pytest.mark.parametrize(
    ("D", "dimension", "tau", "words"),
    [
        (linalg.block_diag(J, [[0.0]]), 3, 2 * np.pi, "a real eigenvalue shares the largest real part"),
        (linalg.block_diag(J, J, [[-1.0]]), 4, 2 * np.pi, "the period in t depends on the orbit"),
        (linalg.block_diag(J, np.sqrt(2) * J), 4, None, "different frequencies"),
        (linalg.block_diag(LONG, [[0.0, 1], [0, 0]], [[-1.0]]), 6, 2 * np.pi, "a pair is defective"),
    ],
)
def test_many_rotations_are_said_to_be_many(D, dimension, tau, words):
    found = theory.dominant(D)
    assert (found.kind, found.dimension) == ("rotating", dimension)
    assert words in found.note
    if tau is None:
        assert found.period is None
    else:
        assert found.period.tau == pytest.approx(tau) and found.period.t is None


@pytest.mark.parametrize("key", range(3))
def test_a_defective_real_eigenvalue_outgrows_a_pair(key):
    """λ = 1 with a Jordan block of 2 beside 1 ± 2i: tokens come to rest, like 1/τ."""
    D = similar([[[1.0, -2], [2, 1]], [[1.0, 1], [0, 1]], [[0.0]]], key)
    found = theory.dominant(D)
    assert (found.kind, found.index, found.period) == ("algebraic", 2, None)
    assert "outgrow" in found.note
    x = cloud(20, 5)
    end = np.asarray(found.push(x).x)

    def missing(tau):
        moved = np.asarray(x.x) @ linalg.expm((D - np.eye(5)) * tau).T
        return np.linalg.norm(moved / np.linalg.norm(moved, axis=1, keepdims=True) - end, axis=1)

    near, far = missing(2e4 * np.pi), missing(1e4 * np.pi)  # whole turns of the pair
    assert np.all(near < 0.01)
    np.testing.assert_allclose(far / near, 2, rtol=0.02)


@pytest.mark.parametrize("apart", [1e-9, 5e-8, 1e-6, 1e-4])
@pytest.mark.parametrize("m", [2, 3])
def test_pairs_that_lie_close_are_no_chain(apart, m):
    """A defective real eigenvalue beside pairs with close frequencies, which are not defective."""
    pairs = [(1 + k * apart) * J for k in range(m)]
    for key in range(5):
        S = ortho_group.rvs(3 * m, random_state=key)
        M = S @ linalg.block_diag(np.diag(np.ones(m - 1), 1), *pairs) @ S.T
        assert theory.dominant(M).kind == "algebraic"


@pytest.mark.parametrize(("m", "condition"), [(3, 1e3), (4, 1e2), (4, 1e3), (5, 10.0), (5, 1e2), (6, 1e2)])
def test_long_chains_end_at_their_eigenvector_or_are_not_certain(m, condition):
    """One Jordan block in a basis of that condition: all tokens end at ± its first vector."""
    for key in range(20):
        turns = ortho_group.rvs(m, size=2, random_state=key)
        P = turns[0] @ np.diag(np.logspace(0, -np.log10(condition), m)) @ turns[1]
        found = theory.dominant(P @ (np.eye(m) + np.diag(np.ones(m - 1), 1)) @ np.linalg.inv(P))
        if "not certain" in found.note:
            assert m > 3  # rounding splits shorter chains too little to be mistaken for different eigenvalues
            continue
        assert (found.kind, found.index) == ("algebraic", m)
        height = np.asarray(found.push(cloud(50, m)).x) @ P[:, 0] / np.linalg.norm(P[:, 0])
        assert np.all(np.abs(height) > 0.999)


@pytest.mark.parametrize("apart", [1e-3, 1e-4, 1e-5, 1e-6, 2e-7])
def test_two_chains_that_lie_close_are_not_certain(apart):
    """J2(1) beside J2(1 − δ): tokens end at e1, and whether the blocks are one is at the edge of rounding."""
    found = theory.dominant(np.diag([1, 1, 1 - apart, 1 - apart]) + np.diag([1.0, 0, 1], 1))
    end = np.asarray(found.push(tkf.Tokens(np.array([[1.0, 2, 3, 4]]) / np.sqrt(30))).x)
    assert "not certain" in found.note or abs(end[0, 0]) > 1 - 1e-6


def test_a_chain_beside_the_dominant_eigenvalue_makes_it_uncertain():
    """1 above a J2 and a simple eigenvalue, all within 2e-8: the projector is wrong by a third."""
    J = np.diag([1.0, *[1 - 2e-8] * 3])
    J[1, 2] = 1
    turn = ortho_group.rvs(4, random_state=0)
    assert "not certain" in theory.dominant(turn @ J @ turn.T).note
    far = np.diag([1.0, 0, 0])  # an exact chain far below is no reason for doubt
    far[1, 2] = 1
    assert "not certain" not in theory.dominant(far).note


def test_small_parts_in_a_chain_count():
    """exp(Dt)x = (−1 + 1e-6 t, 1e-6): to +e1 in the end."""
    x = np.array([[-1, 1e-6], [-1, 1e-8]])
    end = theory.dominant(np.array([[1.0, 1], [0, 1]])).push(
        tkf.Tokens(x / np.linalg.norm(x, axis=1)[:, None])
    )
    np.testing.assert_allclose(end.x, [[1, 0], [1, 0]], atol=1e-12)


@pytest.mark.parametrize("power", [-160, -85, 0, 78, 120])
def test_push_of_a_long_chain_at_any_scale(power):
    M = np.diag(np.ones(2), 1) * 10.0**power
    np.testing.assert_allclose(
        theory.dominant(M).push(tkf.Tokens([[0.6, 0.48, 0.64]])).x, [[1, 0, 0]], atol=1e-12
    )


@pytest.mark.parametrize("others", [[], [np.sqrt(2) * J], [[[0.0]], [[-0.5]]]])
def test_a_defective_pair_ends_on_one_circle(others):
    """The time of a turn there is that of an orbit after a long time, whatever shares the real part."""
    D = similar([LONG, *others], 1)
    B = np.diag(np.linspace(0.5, 2, len(D)))
    found = theory.limit(tkf.AttentionWeights(B, D @ np.linalg.inv(B).T))
    assert found.kind == "rotating" and "a pair is defective" in found.note
    step, late = linalg.expm(D * 2 * np.pi / 400), linalg.expm(D * 2 * np.pi * 5e4)
    for start in np.asarray(cloud(3, len(D)).x):
        x, time = late @ start, 0.0
        for _ in range(400):
            x = step @ x / np.linalg.norm(x)
            time += np.linalg.norm(B.T @ x) / np.linalg.norm(x) * 2 * np.pi / 400
        assert found.period.t == pytest.approx(time, rel=1e-4)


def test_semisimple_pairs_are_not_called_defective():
    assert "defective" not in theory.dominant(similar([J, J, [[-1.0]]], 0)).note


# --- refusals


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (
            lambda: theory.limit(tkf.AttentionWeights(np.ones((2, 3, 3)), np.eye(3))),
            "`weights` must have one head.* but was with 2 heads",
        ),
        (lambda: theory.dominant(J).push(cloud(3, 2)), "`limit` must be of kind 'fixed' or 'algebraic'"),
        (lambda: theory.limit(WORKED).push(cloud(3, 3)), "`tokens` must have d = 2, but was 3"),
        (lambda: theory.limit(WORKED, -1.0), "`tolerance` must lie in"),
        (
            lambda: theory.limit(tkf.AttentionWeights(1e-200 * np.eye(2), 1e-200 * np.eye(2))),
            "`weights` must have B, V and V Bᵀ within 1e±290, but was with a V Bᵀ near 1e-400",
        ),
        (lambda: theory.limit(WORKED, "fine"), "`tolerance` must be a number"),
        (lambda: theory.dominant(np.ones((2, 3, 3))), "`matrix` must be one matrix"),
        (
            lambda: theory.limit(tkf.AttentionWeights(np.diag([1.0, 0.0]), -np.eye(2))),
            r"`weights` must have Bᵀx ≠ 0 where tokens end, but \|Bᵀx\| ≤ 1e-12·‖B‖ at x = ±\(0, 1\)",
        ),
        (
            lambda: theory.limit(tkf.AttentionWeights(np.zeros((2, 2)), np.eye(2))),
            "`weights` must have Bᵀx ≠ 0 where tokens end",
        ),
    ],
)
def test_bad_input_is_one_sentence(bad, sentence):
    with pytest.raises(tkf.InputError, match="^" + sentence):
        bad()


def test_singular_matrices_outside_e_are_mentioned_or_harmless():
    found = theory.limit(tkf.AttentionWeights(np.diag([1.0, 0.0, 2.0]), np.diag([1.0, 1.0, 0.1])))
    assert found.dimension == 1 and "Bᵀx = 0 at x = ±(0, 1, 0)" in found.note
    # D singular through V alone: the field is defined everywhere
    assert "Bᵀx" not in theory.limit(tkf.AttentionWeights(np.eye(2), np.diag([1.0, 0.0]))).note


@pytest.mark.parametrize("power", [-150, -139, 139, 150])
def test_matrices_of_any_size(power):
    M = np.array([[1, 0.5], [0.2, -0.7]])
    found, plain = theory.dominant(M * 10.0**power), theory.dominant(M)
    assert found.kind == plain.kind == "fixed"
    top = 0.15 + np.sqrt(0.85**2 + 0.1)  # of λ² − .3λ − .8
    assert found.eigenvalue == pytest.approx(top * 10.0**power, rel=1e-12)
    np.testing.assert_allclose(found.projector, plain.projector, rtol=1e-10)


@pytest.mark.parametrize("m", [6, 8, 12])
def test_what_rounding_may_have_made_is_reported_as_uncertain(m):
    """A turned Jordan block of that size splits by a hundredth: what is found is not what it was."""
    M = np.eye(m) + np.diag(np.ones(m - 1), 1)
    for key in range(5):
        S = ortho_group.rvs(m + 2, random_state=key)
        found = theory.dominant(S @ linalg.block_diag(M, [[0.4]], [[-0.3]]) @ S.T)
        right = found.kind == "algebraic" and found.dimension == m
        assert right or "not certain" in found.note
    for well in (np.diag([1.0, 0.4, 0.1]), np.array([[1.0, 0.3, 0.0], [0.0, 0.5, 0.2], [0.1, 0.0, 0.1]])):
        assert "not certain" not in theory.dominant(well).note
