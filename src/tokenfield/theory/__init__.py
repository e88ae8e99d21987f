"""Closed forms: what the theorems say, to compare with what the program does."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
