"""The mean field itself: what densities show that tokens cannot, and how far tokens are from it."""

from tokenfield.papers.mean_field import limit, noisy_transformer, patterns

RECIPES = (limit.RECIPE, noisy_transformer.RECIPE, patterns.RECIPE)
