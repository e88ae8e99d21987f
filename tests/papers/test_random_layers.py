"""The recipes random-layers and layered-limit: quick runs against the theory."""

import numpy as np
import pytest

from tokenfield.papers import catalogue, recipe
from tokenfield.papers.repertoire import layered_limit


def test_slopes_of_exact_exponentials():
    """W2 = e^{−aL} for two networks: the mean of a and its standard error."""
    depths = np.arange(0, 101, 5)
    values = np.exp(-np.array([[0.1], [0.3]]) * depths)
    found = layered_limit.Networks(depths, values, values, np.zeros(2), np.zeros(2), 0.2, 0.0)
    mean, error = layered_limit.slopes(found, values, (30, 100))
    assert mean == pytest.approx(-0.2) and error == pytest.approx(0.1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["random-layers", "layered-limit"])
def test_quick_recipe_passes(name, tmp_path):
    outcome = recipe.reproduce(catalogue.find(name), tmp_path, True, lambda done, what: None)
    assert not [check for check in outcome.checks if not check.passed]
