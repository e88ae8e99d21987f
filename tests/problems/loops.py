"""The equations of theory.md by loops in NumPy, and their solutions by SciPy: nothing here knows the library."""

import numpy as np
from scipy import integrate


def tok(n, d, s):
    """The test tokens of theory §6: x_ik = cos(s·i·√(k+1) + k), normalised."""
    i, k = np.arange(1, n + 1)[:, None], np.arange(1, d + 1)
    x = np.cos(s * i * np.sqrt(k + 1) + k)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def projected(x, a):
    """P_x a, row by row."""
    return np.array([v - (row @ v) * row for row, v in zip(x, a, strict=True)])


def turned(frequencies, place, v):
    """Rotary embedding: the pair (2k−1, 2k) of coordinates turned by ω_k·place."""
    out = np.array(v, float)
    for k, w in enumerate(frequencies):
        c, s = np.cos(w * place), np.sin(w * place)
        a, b = v[2 * k], v[2 * k + 1]
        out[2 * k], out[2 * k + 1] = c * a - s * b, s * a + c * b
    return out


def attention(
    x,
    heads,
    beta,
    kernel="softmax",
    weights=None,
    sees=None,
    offset=None,
    rope=(),
    keys=None,
):
    """What heads [(B, V, c), …] read at every row of x, token by token and key by key.

    `kernel`: "softmax", "usa", "hardmax", or a function of one score. `sees(i, j)` and `offset(i, j)`, places
    from 0. Unnormalised sums are divided by the visible weight where `sees` is given.
    """
    keys = x if keys is None else keys
    w = np.full(len(keys), 1 / len(keys)) if weights is None else weights
    out = np.zeros_like(x)
    for i in range(len(x)):
        for head in heads:
            B, V, c = (*head, np.zeros(len(x[i])))[:3]
            scores, visible = [], []
            for j in range(len(keys)):
                if w[j] > 0 and (sees is None or sees(i, j)):
                    q = turned(rope, i, B.T @ x[i] + c)
                    scores.append(q @ turned(rope, j, keys[j]))
                    visible.append(j)
            if visible:
                out[i] += V @ _read(i, np.array(scores), visible, keys, w, beta, kernel, sees, offset)
    return out


def _read(i, scores, visible, keys, w, beta, kernel, sees, offset):
    extra = np.array([0.0 if offset is None else offset(i, j) for j in visible])
    if kernel == "hardmax":  # the limit β → ∞: offsets only weigh those that tie
        p = np.where(scores >= scores.max() - 1e-12, np.exp(extra), 0.0)
    elif kernel == "softmax":
        level = beta * scores + extra
        p = np.exp(level - level.max())
    elif kernel == "usa":
        p = np.exp(beta * scores + extra)
    else:
        p = np.array([kernel(s) for s in scores])
    total = sum(w[j] * pj * keys[j] for j, pj in zip(visible, p, strict=True))
    if kernel in ("softmax", "hardmax"):
        return total / sum(w[j] * pj for j, pj in zip(visible, p, strict=True))
    return total if sees is None else total / sum(w[j] for j in visible)


def flow(slope, y0, ts, rtol=1e-12, atol=1e-13):
    """Rows at the times ts (counted from 0) of y' = slope(t, y), by DOP853."""
    y0, ts = np.asarray(y0, float), np.atleast_1d(np.asarray(ts, float))
    run = integrate.solve_ivp(
        lambda t, y: slope(t, y.reshape(y0.shape)).ravel(),
        (0, ts[-1]),
        y0.ravel(),
        "DOP853",
        ts,
        rtol=rtol,
        atol=atol,
    )
    assert run.success
    return run.y.T.reshape(len(ts), *y0.shape)


def sphere_flow(output, x0, ts):
    """Tokens at the times ts under x' = P_x output(x)."""
    return flow(lambda t, x: projected(unit(x), output(unit(x))), x0, ts)
