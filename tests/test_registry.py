"""The registry: each name said once, settings from the signature, sentences for what is not known."""

import subprocess
import sys
from typing import Literal

import pytest

from tokenfield import registry
from tokenfield.errors import InputError
from tokenfield.registry import Member, Required, Setting, register


@pytest.fixture(autouse=True)
def forget():
    """Whatever a test registers is gone after it."""
    yield
    registry.forget(__name__)
    assert __name__ not in registry.foreign_modules()


def test_settings_are_the_arguments_with_the_types_that_a_file_needs():
    @register(
        "term", "bump", settings={"at": list[float], "mask": Member("mask"), "n": Setting(int), "f": None}
    )
    def bump(at, width: float = 2.0, mask=None, n: int = 3, f=None, how: Literal["a", "b"] = "a"):
        """A bump.

        And more.
        """

    entry = registry.find("term", "bump")
    assert dict(entry.settings) == {
        "at": Setting(list[float]),
        "width": Setting(float, 2.0),
        "mask": Setting(Member("mask"), None),
        "n": Setting(int, Required),
        "how": Setting(Literal["a", "b"], "a"),
    }
    assert entry.summary == "A bump." and entry.make is bump and not entry.random and not entry.builtin
    assert entry.module == __name__ and __name__ in registry.foreign_modules()


def test_what_the_caller_has_is_no_setting():
    assert list(registry.find("model", "softmax").settings) == ["beta", "mask"]


@pytest.mark.parametrize(("name", "random"), [("uniform", True), ("poisson", False), ("equiangular", False)])
def test_a_key_without_default_makes_an_entry_random(name, random):
    assert registry.find("law", name).random == random


def test_a_name_is_registered_once():
    def made():
        def law(n: int):
            pass

        return law

    def other(n: int):
        pass

    register("law", "twin")(made())
    register("law", "twin")(made())  # the same definition run again: a reload
    with pytest.raises(
        InputError, match=r"'twin' is registered at .*test_registry.py:\d+ and at .*test_registry.py:\d+$"
    ):
        register("law", "twin")(other)
    assert registry.find("law", "twin").make is not other


def test_unknown_names_are_sentences():
    sentence = "^`solver.kind` must be one of 'layers', 'rk4', .*, but was 'stang'; did you mean 'strang'\\?$"
    with pytest.raises(InputError, match=sentence):
        registry.find("solver", "stang", "solver.kind")
    with pytest.raises(InputError, match="^`mask` must be one of 'causal', 'strict', .*'rope', but was 3$"):
        registry.find("mask", 3)
    with pytest.raises(InputError, match="^`family` must be one of law, density, model"):
        registry.entries("lore")


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ({"exact": True}, "^`exact` must be a fact of the law 'x' \\(exact_n, size\\), but was not one$"),
        ({"settings": {"m": int}}, "^`m` must be a setting of the law 'x' \\(n\\), but was not one$"),
        ({"random": True}, "^`random` must come with an argument `key` of the law 'x'"),
    ],
)
def test_mistakes_of_a_decorator_are_sentences(told, sentence):
    with pytest.raises(InputError, match=sentence):
        register("law", "x", **told)(lambda n: None)


def test_built_in_entries_come_first_wherever_a_user_registers():
    code = (
        "import sys; from tokenfield.registry import register, entries\n"
        "register('domain', 'mine')(lambda n: None)\n"
        "assert not {'pydantic', 'tokenfield.density', 'diffrax'} & set(sys.modules)\n"
        "print(*entries('domain'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["circle", "sphere", "zonal", "characteristics", "mine"], done.stderr


@pytest.mark.parametrize("family", registry.FAMILIES)
def test_every_entry_says_what_it_is(family):
    for entry in registry.entries(family).values():
        assert entry.summary and entry.place.rpartition(":")[2].isdigit()
        assert set(entry.facts) == set(registry.FAMILIES[family].facts)
