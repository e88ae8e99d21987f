"""All recipes, in the order in which they are listed and run."""

from tokenfield.papers import clustering, low_temperature
from tokenfield.papers.recipe import Recipe

RECIPES: tuple[Recipe, ...] = (*low_temperature.RECIPES, *clustering.RECIPES)
