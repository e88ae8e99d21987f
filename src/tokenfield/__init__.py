"""tokenfield: tokens of deep transformers as particles on the sphere, at any temperature.

    import tokenfield as tkf

The public nouns and verbs are listed in `__init__.pyi`; each is imported when it is first used.
"""

import importlib.metadata

import jax
import lazy_loader

__version__ = importlib.metadata.version("tokenfield")

jax.config.update("jax_enable_x64", True)

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
