"""Peak resident memory of one softmax velocity, and of a gradient through it, in fresh processes."""

import subprocess
import sys

from report import Row, peak

LIMIT = 1000.0
CASES = {"velocity": 100_000, "gradient": 20_000}


def rows() -> list[Row]:
    return [_measured(case, n) for case, n in CASES.items()]


def _measured(case: str, n: int) -> Row:
    done = subprocess.run([sys.executable, __file__, case, str(n)], capture_output=True, text=True)
    label = f"{case}, n = {n}, d = 3, whole process"
    if done.returncode:
        return Row("memory", label, "stopped: " + done.stderr.strip().splitlines()[-1], "< 1 GB", False)
    peak = float(done.stdout)
    return Row("memory", label, f"{peak:.0f} MB", "< 1 GB", peak < LIMIT)


def _run(case: str, n: int) -> float:
    import jax
    import jax.numpy as jnp

    import tokenfield as tkf

    tokens = tkf.initial.uniform(n, 3, 0)
    model = tkf.SoftmaxAttention(tkf.AttentionWeights.identity(3), 10.0)

    def speed(x: jax.Array) -> jax.Array:
        return jnp.sum(model.velocity(tkf.Tokens(x, tokens.weights)) ** 2)

    work = {"velocity": lambda x: model.velocity(tkf.Tokens(x, tokens.weights)), "gradient": jax.grad(speed)}
    jax.block_until_ready(jax.jit(work[case])(tokens.x))
    return peak()


if __name__ == "__main__":
    print(_run(sys.argv[1], int(sys.argv[2])))
