"""All recipes, in the order in which they are listed and run.

A recipe is named here with the module that holds it as `RECIPE`; the module is imported when the recipe is
asked for, so that one recipe does not cost the imports of all.
"""

import importlib

from tokenfield.papers import recipe
from tokenfield.papers.recipe import Recipe

#: Name of a recipe → its module, below this package.
MODULES = {
    "concentration": "low_temperature.concentration",
    "scaling": "low_temperature.scaling",
    "terminal": "low_temperature.terminal",
    "metastability": "low_temperature.metastability",
    "laplace": "low_temperature.laplace",
    "proof": "low_temperature.proof",
    "finite-tokens": "low_temperature.finite_tokens",
    "nonsymmetric": "low_temperature.nonsymmetric",
    "training-drift": "low_temperature.training_drift",
    "clustering-fig1": "clustering.figure1",
    "clustering-fig2": "clustering.figure2",
    "clustering-fig3": "clustering.figure3",
    "clustering-fig4": "clustering.figure4",
    "lojasiewicz": "clustering.lojasiewicz",
    "pl": "clustering.pl",
    "synchronisation": "clustering.synchronisation",
    "uniform-instability": "clustering.uniform_instability",
    "landscape": "clustering.landscape",
    "phase-diagram": "clustering.phase_diagram",
    "staircase": "clustering.staircase",
    "mean-field-limit": "mean_field.limit",
    "noisy-transformer": "mean_field.noisy_transformer",
    "patterns": "mean_field.patterns",
    "random-layers": "repertoire.random_layers",
    "layered-limit": "repertoire.layered_limit",
    "several-heads": "repertoire.several_heads",
    "normalisation": "repertoire.normalisation",
    "mlp": "repertoire.mlp",
    "causal": "repertoire.causal",
    "lost-in-the-middle": "repertoire.lost_in_the_middle",
    "kernels": "repertoire.kernels",
    "gaussian-closure": "repertoire.gaussian_closure",
}


def find(name: str) -> Recipe:
    """The recipe of that name; for an unknown one, a sentence with the nearest known."""
    return _load(MODULES[name]) if name in MODULES else recipe.find(recipes(), name)


def recipes(paper: str = "") -> tuple[Recipe, ...]:
    """All recipes, or those in the directory of one paper."""
    return tuple(_load(module) for module in MODULES.values() if module.startswith(paper))


def _load(module: str) -> Recipe:
    return importlib.import_module(f"tokenfield.papers.{module}").RECIPE


def __getattr__(name: str) -> tuple[Recipe, ...]:
    """`RECIPES`: all of them, imported when it is first read."""
    if name == "RECIPES":
        return recipes()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
