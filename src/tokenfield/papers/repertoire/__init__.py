"""Recipes of the wider repertoire of transformer models (masks, norms, depth, kernels)."""
