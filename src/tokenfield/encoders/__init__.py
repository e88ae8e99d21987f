"""Trained encoders: read a checkpoint, fold its layers into the models of the theory, inspect them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
