"""Direct softmax sums against NumPy, torch and C++, all cores, n = 10⁴ weighted tokens, β = 10, B = I.

With B a multiple of I the scores are symmetric and tokenfield computes each exponential once for two
tokens; the line "any B" is the same sum without that knowledge. All competitors must agree to 1e-10
before any is timed. Ratios are of the best times of the rounds.
"""

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import tokenfield as tkf
from report import Row, Times, race
from tokenfield.sums.base import Queries
from tokenfield.sums.direct import Direct

N, BETA, AGREE = 10_000, 10.0, 1e-10
ROUNDS = {3: 9, 64: 5, 384: 3}
#: dimension -> competitor -> how many times as fast tokenfield must be
REQUIRED = {3: {"NumPy": 8.0, "torch": 1.5, "C++": 1 / 1.3}, 64: {"torch": 1.0}, 384: {"torch": 1.0}}
MISSING = {"torch": "not installed", "C++": "no compiler"}
HERE = Path(__file__).parent


def rows() -> list[Row]:
    return [row for d in REQUIRED for row in _dimension(d)]


def _dimension(d: int) -> list[Row]:
    x, w = _tokens(d)
    competitors = {
        "tokenfield": _tokenfield(x, w, symmetric=True),
        "any B": _tokenfield(x, w, symmetric=False),
        "NumPy": _numpy(x, w),
    }
    if (torch := _torch(x, w)) is not None:
        competitors["torch"] = torch
    if d == 3 and (compiled := _compiled(x, w)) is not None:
        competitors["C++"] = compiled
    _check(competitors)
    times = race(competitors, ROUNDS[d])
    speed = N * N / times["tokenfield"].best / 1e9
    found = [Row("direct sums", f"d = {d}, tokenfield", f"{speed:.3f} · 10⁹ pairs/s")]
    names = [name for name in ("any B", "NumPy", "torch", "C++") if name in times or name in REQUIRED[d]]
    return found + [_against(name, d, times) for name in names]


def _against(name: str, d: int, times: dict[str, Times]) -> Row:
    """How many times as fast as a competitor: by best times, and by medians for the reader."""
    need = REQUIRED[d].get(name)
    required = "" if need is None else f"≥ {need:.2f} ×"
    case = f"d = {d}, speed against {name}"
    if name not in times:
        return Row("direct sums", case, MISSING[name], required)
    best = times[name].best / times["tokenfield"].best
    middle = times[name].middle / times["tokenfield"].middle
    measured = f"{best:.2f} × (medians {middle:.2f} ×)"
    return Row("direct sums", case, measured, required, None if need is None else best >= need)


def _tokens(d: int) -> tuple[np.ndarray, np.ndarray]:
    w = np.random.default_rng(1).uniform(0.1, 1.1, N)
    return np.array(tkf.initial.uniform(N, d, 0).x), w / w.sum()


def _check(competitors: dict[str, Callable[[], object]]) -> None:
    results = {name: np.asarray(run()) for name, run in competitors.items()}
    for name, result in results.items():
        off = float(np.abs(result - results["NumPy"]).max())
        if not off <= AGREE:
            raise RuntimeError(f"{name} and NumPy must agree to {AGREE}, but differ by {off:.3g}")


def _tokenfield(x: np.ndarray, w: np.ndarray, symmetric: bool) -> Callable[[], object]:
    tokens = tkf.Tokens(x, w)
    sums, A = Direct(symmetric), BETA * jnp.eye(x.shape[1])
    return lambda: jax.block_until_ready(sums.exponential(Queries(A, tokens.x), tokens).mean)


def _numpy(x: np.ndarray, w: np.ndarray) -> Callable[[], object]:
    def means() -> np.ndarray:
        scores = BETA * x @ x.T
        p = w * np.exp(scores - scores.max(axis=1, keepdims=True))
        return (p / p.sum(axis=1, keepdims=True)) @ x

    return means


def _torch(x: np.ndarray, w: np.ndarray) -> Callable[[], object] | None:
    try:
        import torch  # pyright: ignore[reportMissingImports] (an extra of the benchmarks)
    except ImportError:
        return None
    y, mask = torch.from_numpy(x)[None, None], torch.from_numpy(np.log(w))[None, None, None]
    attention = torch.nn.functional.scaled_dot_product_attention
    return lambda: attention(y, y, y, attn_mask=mask, scale=BETA)[0, 0]


def _compiled(x: np.ndarray, w: np.ndarray) -> Callable[[], object] | None:
    library = _build()
    if library is None:
        return None
    call = library.softmax_means3
    call.argtypes = [*[np.ctypeslib.ndpointer(np.float64, flags="C")] * 4, ctypes.c_long, ctypes.c_long]
    call.restype = None

    def means() -> np.ndarray:
        out = np.empty_like(x)
        call(BETA * x, x, w, out, N, N)
        return out

    return means


def _build() -> ctypes.CDLL | None:
    compiler = shutil.which("g++")
    if compiler is None:
        return None
    target = HERE / "build" / "yardstick.so"
    target.parent.mkdir(exist_ok=True)
    flags = ["-O3", "-march=native", "-ffast-math", "-fopenmp", "-shared", "-fPIC"]
    subprocess.run(
        [compiler, *flags, str(HERE / "yardstick.cpp"), "-o", str(target), "-lmvec", "-lm"], check=True
    )
    return ctypes.CDLL(str(target))
