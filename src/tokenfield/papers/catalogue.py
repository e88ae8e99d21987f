"""All recipes, in the order in which they are listed and run."""

from tokenfield.papers import clustering, low_temperature, mean_field
from tokenfield.papers.recipe import Recipe

RECIPES: tuple[Recipe, ...] = (*low_temperature.RECIPES, *clustering.RECIPES, *mean_field.RECIPES)
