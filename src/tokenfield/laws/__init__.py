"""Laws of tokens: the state, initial laws, symmetries."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, ["initial", "symmetry", "tokens"])
