"""The recipes kernels and gaussian-closure: quick runs against the theory."""

import pytest

from tokenfield.papers import catalogue, recipe


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kernels", "gaussian-closure"])
def test_quick_recipe_passes(name, tmp_path):
    found = recipe.find(catalogue.RECIPES, name)
    outcome = recipe.reproduce(found, tmp_path, True, lambda done, what: None)
    assert not [check for check in outcome.checks if not check.passed]
