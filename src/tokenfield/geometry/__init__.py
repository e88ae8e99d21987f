"""Geometry of the sphere: points, angles, harmonics."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, ["circle", "gegenbauer", "harmonics", "sphere"])
