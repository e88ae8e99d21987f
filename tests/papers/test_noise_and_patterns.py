"""The recipes noisy-transformer and patterns: their parts against formulas, quick runs against the theory."""

import numpy as np
import pytest

from tokenfield.papers import catalogue, recipe
from tokenfield.papers.mean_field import patterns


def test_crests_are_found_where_they_are():
    """2 cos(3θ + a) has its crests at (2πj − a)/3."""
    c = np.zeros(9, complex)
    c[0], c[3] = 1.0, np.exp(0.7j)
    expected = np.sort(np.mod((2 * np.pi * np.arange(3) - 0.7) / 3, 2 * np.pi))
    np.testing.assert_allclose(patterns._crests(c), expected, atol=1e-6)
    assert patterns._apart(expected, np.roll(expected, 1)) < 1e-12
    assert np.isnan(patterns._apart(expected, expected[:2]))


def test_the_perturbation_has_one_size():
    degrees, amplitudes = patterns.perturbed(7)
    np.testing.assert_allclose(np.abs(amplitudes), patterns.SIZE)
    assert degrees[0] == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["noisy-transformer", "patterns"])
def test_quick_recipe_passes(name, tmp_path):
    found = recipe.find(catalogue.RECIPES, name)
    outcome = recipe.reproduce(found, tmp_path, True, lambda done, what: None)
    assert not [check for check in outcome.checks if not check.passed]
