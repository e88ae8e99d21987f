"""The mean field itself: what densities show that tokens cannot, and how far tokens are from it."""

from tokenfield.papers.mean_field import noisy_transformer, patterns

RECIPES = (noisy_transformer.RECIPE, patterns.RECIPE)
