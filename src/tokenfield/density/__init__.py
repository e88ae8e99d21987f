"""The mean-field equation itself: laws as densities, the limit n → ∞ of tokens."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
