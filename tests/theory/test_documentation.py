"""Public functions of three or more arguments say what each of them is."""

import inspect
import re

import pytest

from tokenfield import theory
from tokenfield.geometry import circle, gegenbauer, harmonics, sphere
from tokenfield.measure import energy


def public_functions(module):
    for name, thing in vars(module).items():
        if inspect.isfunction(thing) and thing.__module__ == module.__name__ and not name.startswith("_"):
            yield thing


FUNCTIONS = [thing for name in theory.__all__ if inspect.isfunction(thing := getattr(theory, name))]
FUNCTIONS += [
    f for module in (circle, gegenbauer, harmonics, sphere, energy) for f in public_functions(module)
]


def undocumented(function):
    """Parameters without a line in the section of arguments; all of them without such a section."""
    doc, names = inspect.getdoc(function) or "", list(inspect.signature(function).parameters)
    _, _, section = doc.partition("\nArgs:\n")
    section, _, returns = section.partition("\nReturns:\n")
    return [
        name for name in names if not re.search(rf"^    {name}: \S", section, re.MULTILINE) or not returns
    ]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_every_argument_is_documented(function):
    assert len(inspect.signature(function).parameters) < 3 or undocumented(function) == []


def test_a_missing_argument_would_be_found():
    def half(a, b, c):
        """One sentence.

        Args:
            a: a number.
            c: another.

        Returns:
            Nothing.
        """

    assert undocumented(half) == ["b"]
