"""Absurd files: one sentence of at most 400 letters, at once, and nothing is asked of the memory."""

import time

import pytest

import tokenfield as tkf
from tokenfield.config import reading
from tokenfield.sweeps import grid

BASE = {
    "weights": "identity = 3",
    "model": 'kind = "softmax"\nbeta = 2.0',
    "initial": 'law = "uniform"\nn = 10\nd = 3\nkey = 1',
    "times": "stop = 1.0\ncount = 3",
}


def text(before="", **sections):
    return before + "\n".join(f"[{name}]\n{body}" for name, body in (BASE | sections).items())


FILES = {
    "identity": (text(weights=f"identity = {10**12}"), "`identity` must fit into memory, but"),
    "gaussian": (
        text(weights=f"B = {{ gaussian = {10**6} }}\nV = {{ identity = 3 }}"),
        "`gaussian` must fit",
    ),
    "diag": (
        text(weights=f"V.diag = [{'1.0,' * 100_000}]\nB = {{ identity = 3 }}"),
        "`identity` must|`diag` must fit",
    ),
    "times": (
        text(times=f"stop = 1.0\ncount = {2**31}"),
        "`times.count` must be less than or equal to 100000000",
    ),
    "tokens": (
        text(initial=f'law = "uniform"\nn = {10**30}\nd = 3\nkey = 1'),
        "`initial.n` must fit into memory",
    ),
    "nested lists": ("a = " + "[" * 3000 + "]" * 3000, "must not nest"),
    "nested matrix": (text(weights="B = " + "[" * 900 + "]" * 900), "must not nest"),
    "digits": (text(times=f"stop = 1.0\ncount = {'9' * 5000}"), "a number in it is too long"),
    "many digits": (text(times=f"stop = {'9' * 4000}\ncount = 3"), "`times.stop` must be"),
    "run is a list": (text("run = [1, 2, 3]\n"), "`run` must be"),
    "date": (text(times="stop = 1979-05-27\ncount = 3"), "`times.stop` must be"),
    "at and stop": (text(times="stop = 1.0\nat = []"), "holds both"),
    "no times": (text(times="at = []"), "hold at least one time in at"),
    "text for a whole number": (
        text(times='stop = 1.0\ncount = "5"'),
        "`times` must hold a whole number as count",
    ),
    "truth for a whole number": (
        text(times="stop = 1.0\ncount = true"),
        "`times` must hold a whole number as count",
    ),
    "decimals for a whole number": (
        text(initial='law = "uniform"\nn = 100000.0\nd = 3\nkey = 1'),
        "must hold a whole number as n, but holds 100000.0",
    ),
    "text for a number": (
        text(model='kind = "softmax"\nbeta = "2.0"'),
        "must hold a number as beta, but holds '2.0'",
    ),
}
SWEEPS = {
    "seeds": ("seeds = 100000000", "`sweep.seeds` must be at most 1000000"),
    "equal values": (f"model.beta = [{'1.0,' * 5000}]", "must not hold the same cell twice"),
    "a bad second value": ("model.beta = [1.0, 'x']", "`model.beta` must be a valid number"),
}


def one_sentence(read, path, sentence, seconds):
    began = time.monotonic()
    with pytest.raises(tkf.InputError, match=sentence) as error:
        read(path)
    assert len(str(error.value)) <= 400 and "\n" not in str(error.value)
    assert time.monotonic() - began < seconds


@pytest.mark.parametrize("case", FILES)
def test_an_absurd_file_is_one_sentence_at_once(case, tmp_path):
    content, sentence = FILES[case]
    (tmp_path / "case.toml").write_text(content)
    one_sentence(lambda path: reading.read(path).arguments(), tmp_path / "case.toml", sentence, 3)


@pytest.mark.parametrize("case", SWEEPS)
def test_an_absurd_sweep_is_one_sentence(case, tmp_path):
    content, sentence = SWEEPS[case]
    (tmp_path / "case.toml").write_text(text(sweep=content))
    one_sentence(grid.read, tmp_path / "case.toml", sentence, 20)
