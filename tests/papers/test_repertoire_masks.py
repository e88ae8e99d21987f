"""The recipes about masks: quick runs pass."""

import pytest

from tokenfield.papers import catalogue, recipe


@pytest.mark.slow
@pytest.mark.parametrize("name", ["causal", "lost-in-the-middle"])
def test_quick_recipe_passes(name, tmp_path):
    outcome = recipe.reproduce(catalogue.find(name), tmp_path, True, lambda done, what: None)
    assert not [check for check in outcome.checks if not check.passed]
