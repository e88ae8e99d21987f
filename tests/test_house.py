"""The house rules: who may import whom, what the front door holds, what the README promises."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tokenfield as tkf

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "tokenfield"

#: Lower layers first; a module imports only from lower layers or its own.
LAYERS = [
    {"errors", "sphere"},
    {"tokens", "store"},
    {"weights"},
    {"initial", "attention", "symmetry"},
    {"models"},
    {"solvers", "mirrored"},
    {"stepper", "stochastic", "trajectory"},
    {"record"},
    {"run"},
    {"simulate"},
    {"density"},
    {"diagnostics", "theory"},
    {"settings", "initial_settings", "density_settings", "figures", "discs", "camera"},
    {"config"},
    {"sweep"},
    {"papers"},
    {"lab"},
    {"cli"},
    {"__main__"},
]
LEVEL = {name: k for k, layer in enumerate(LAYERS) for name in layer}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tokenfield":
            if node.module == "tokenfield":
                yield from (alias.name for alias in node.names)
            else:
                yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            for alias in node.names:
                assert alias.name != "tokenfield", f"{path} imports the package root"


MODULES = [p for p in sorted(PACKAGE.rglob("*.py")) if p != PACKAGE / "__init__.py"]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_dependencies_point_downwards(path):
    name = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    assert name in LEVEL, f"{name} has no place in the house: add it to LAYERS"
    for other in imports(path):
        assert LEVEL[other] <= LEVEL[name], f"{name} must not import {other}"


def test_theory_needs_only_sphere_tokens_weights():
    for path in (PACKAGE / "theory").glob("*.py"):
        assert set(imports(path)) <= {"errors", "sphere", "tokens", "weights", "theory"}


def test_everything_public_is_there_and_documented():
    for name in tkf.__all__:
        thing = getattr(tkf, name)
        assert thing.__doc__, f"{name} has no docstring"


def test_double_precision_is_on():
    """Silent float32 was found in public code (peers.md)."""
    import jax.numpy as jnp

    assert jnp.zeros(1).dtype == jnp.float64


def test_importing_does_not_start_jax():
    """A process that has only imported may still be forked and set up: devices, threads, distribution."""
    code = "import tokenfield, jax._src.xla_bridge as bridge; print(bridge.backends_are_initialized())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "False", done.stderr


def test_constraints_are_plain_pins():
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        assert re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9_.!+-]+", line), line


def test_the_python_example_of_the_readme_runs(tmp_path, monkeypatch):
    text = (ROOT / "README.md").read_text(encoding="utf8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks, "the README has a Python example"
    monkeypatch.chdir(tmp_path)
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})  # noqa: S102


def test_supported_python():
    assert sys.version_info >= (3, 11)
