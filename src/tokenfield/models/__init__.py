"""Models: what a layer does to every token."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, ["ensembles", "masks"])
