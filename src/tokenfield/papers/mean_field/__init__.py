"""The mean field itself (2410.23228, 2604.16288, 2606.05140 and the equation of all the papers): densities.

What n tokens miss of the limit n → ∞. One module per recipe; theory §§3, 4 are the reference.
"""

from tokenfield.papers.mean_field import limit

RECIPES = (limit.RECIPE,)
