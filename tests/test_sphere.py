"""Geometry against closed forms and its own inverses."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

import tokenfield as tkf
from tokenfield import sphere


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


def test_exp_has_a_gradient_at_rest():
    x = jnp.array([1.0, 0.0, 0.0])
    jacobian = jax.jacobian(lambda v: sphere.exp(x, v))(jnp.zeros(3))
    np.testing.assert_allclose(jacobian[1:, 1:], np.eye(2), atol=1e-15)
