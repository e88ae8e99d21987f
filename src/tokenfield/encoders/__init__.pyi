from .collapse import Collapse, collapse
from .encoder import Encoder
from .idealise import idealise
from .layer import EncoderLayer
from .load import load
from .temperature import Temperature, temperature

__all__ = [
    "Collapse",
    "Encoder",
    "EncoderLayer",
    "Temperature",
    "collapse",
    "idealise",
    "load",
    "temperature",
]
