"""Geometry against closed forms and its own inverses."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

import tokenfield as tkf
from tokenfield.geometry import sphere


@pytest.fixture(params=[2, 3, 7])
def pair(request):
    d = request.param
    return tkf.initial.uniform(50, d, 0).x, tkf.initial.uniform(50, d, 1).x


def test_exp_and_log_are_inverse(pair):
    x, y = pair
    np.testing.assert_allclose(sphere.exp(x, sphere.log(x, y)), y, atol=1e-13)
    np.testing.assert_allclose(jnp.linalg.norm(sphere.log(x, y), axis=1), sphere.distance(x, y), rtol=1e-12)


def test_projection_is_tangent_and_idempotent(pair):
    x, z = pair
    v = sphere.project(x, z)
    np.testing.assert_allclose(jnp.sum(x * v, axis=1), 0, atol=1e-15)
    np.testing.assert_allclose(sphere.project(x, v), v, atol=1e-15)


def test_frame_is_an_orthonormal_basis_of_the_tangent_space(pair):
    e = jnp.eye(pair[0].shape[1])[:1]
    x = jnp.concatenate([pair[0], -pair[0], e, -e])
    q = np.asarray(sphere.frame(x))
    np.testing.assert_allclose(
        np.swapaxes(q, 1, 2) @ q, np.broadcast_to(np.eye(q.shape[2]), (len(x), *q.shape[2:] * 2)), atol=1e-14
    )
    np.testing.assert_allclose(np.einsum("nd,nde->ne", x, q), 0, atol=1e-15)


@pytest.mark.parametrize("angle", [1e-12, 1e-8, 1e-3, 1.0, np.pi - 1e-3, np.pi - 1e-9])
def test_distance_keeps_its_digits_near_0_and_pi(angle):
    """arccos of the inner product has none left at 1e-9."""
    with mpmath.workdps(40):
        y = np.array([float(mpmath.cos(angle)), float(mpmath.sin(angle))])
    assert float(sphere.distance(jnp.array([1.0, 0.0]), jnp.asarray(y))) == pytest.approx(angle, rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("d", [2, 3, 7])
def test_log_at_the_antipode(d):
    """Any tangent vector of length π leads there."""
    x = jnp.concatenate([tkf.initial.uniform(20, d, 0).x, jnp.eye(d), -jnp.eye(d)])
    v = sphere.log(x, -x)
    np.testing.assert_allclose(jnp.linalg.norm(v, axis=1), np.pi, rtol=1e-15)
    rounding = 4 * np.pi * np.finfo(float).eps  # of numbers as great as π
    np.testing.assert_allclose(jnp.sum(x * v, axis=1), 0, atol=rounding)
    np.testing.assert_allclose(sphere.exp(x, v), -x, atol=rounding)


@pytest.mark.parametrize("gap", [1e-3, 1e-7, 1e-10, 1e-13])
def test_log_near_the_antipode_keeps_its_direction(gap):
    """y = −x turned by `gap` along w: log is −(π−gap)w, and x + y has all the digits."""
    x, w = jnp.array([1.0, 0.0, 0.0]), jnp.array([0.0, 0.6, 0.8])
    with mpmath.workdps(40):
        y = jnp.asarray([-float(mpmath.cos(gap)), *(float(mpmath.sin(gap) * c) for c in (0.6, 0.8))])
    np.testing.assert_allclose(sphere.log(x, y), (np.pi - gap) * w, rtol=1e-14, atol=1e-15)
    rotate = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    turned = sphere.log(jnp.asarray(rotate @ x), jnp.asarray(rotate @ y))
    np.testing.assert_allclose(turned, (np.pi - gap) * (rotate @ w), atol=1e-15 / gap + 1e-14)
    np.testing.assert_allclose(turned @ (rotate @ x), 0, atol=1e-13)


def test_exp_has_a_gradient_at_rest():
    x = jnp.array([1.0, 0.0, 0.0])
    jacobian = jax.jacobian(lambda v: sphere.exp(x, v))(jnp.zeros(3))
    np.testing.assert_allclose(jacobian[1:, 1:], np.eye(2), atol=1e-15)
