from .files import is_film, save
from .lines import curves
from .pictures import animation, small_multiples, snapshot
from .style import DASHES, OTHER, PALETTE, STYLE

__all__ = [
    "DASHES",
    "OTHER",
    "PALETTE",
    "STYLE",
    "animation",
    "curves",
    "is_film",
    "save",
    "small_multiples",
    "snapshot",
]
