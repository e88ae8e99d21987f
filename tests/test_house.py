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

#: Packages, lower ones first; a module imports only from lower packages or its own. What a head reads is
#: written in models/ and summed in sums/, so these two share a level.
LAYERS = [
    {"errors"},
    {"registry"},
    {"geometry"},
    {"laws"},
    {"models", "sums"},
    {"solvers"},
    {"runs"},
    {"density"},
    {"theory", "measure", "encoders"},
    {"figures", "config"},
    {"sweeps"},
    {"papers"},
    {"lab"},
    {"cli"},
    {"__main__"},
]
LEVEL = {name: k for k, layer in enumerate(LAYERS) for name in layer}
#: The longest chain of imports that a reader may have to follow.
LONGEST_CHAIN = 14
MODULES = {
    ".".join(p.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): p
    for p in sorted(PACKAGE.rglob("*.py"))
    if p != PACKAGE / "__init__.py"
}


def imports(path):
    """Modules of the package that a file imports, inside functions as well; not those for types only."""
    yield from _imports(path, inside_functions=True)


def _imports(path, inside_functions):
    tree = ast.parse(path.read_text(encoding="utf8"))
    for_types = [
        n for n in ast.walk(tree) if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test)
    ]
    skipped = {inner for node in for_types for inner in ast.walk(node)}
    if not inside_functions:
        functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
        skipped |= {inner for node in functions for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tokenfield":
            base = node.module.removeprefix("tokenfield").removeprefix(".")
            for alias in node.names:
                inner = f"{base}.{alias.name}".removeprefix(".")
                yield inner if inner in MODULES else base
        elif isinstance(node, ast.Import):
            for alias in node.names:
                at_the_door = path.relative_to(PACKAGE).parts[0] in ("papers", "lab")
                assert alias.name != "tokenfield" or at_the_door, f"{path} imports the package root"


GRAPH = {name: sorted(set(imports(path)) - {name}) for name, path in MODULES.items()}
#: What is imported when a module is.
AT_IMPORT = {name: sorted(set(_imports(path, False)) - {name}) for name, path in MODULES.items()}


def longest_chain(graph):
    """The longest chain of imports; a cycle is an error."""
    chains = {}

    def follow(name, above):
        assert name not in above, f"a cycle of imports: {' → '.join([*above, name])}"
        if name not in chains:
            below = [follow(other, (*above, name)) for other in graph.get(name, [])]
            chains[name] = [name, *max(below, key=len, default=[])]
        return chains[name]

    return max((follow(name, ()) for name in graph), key=len)


@pytest.mark.parametrize("name", MODULES)
def test_dependencies_point_downwards(name):
    package = name.partition(".")[0]
    assert package in LEVEL, f"{package} has no place in the house: add it to LAYERS"
    for other in GRAPH[name]:
        assert LEVEL[other.partition(".")[0]] <= LEVEL[package], f"{name} must not import {other}"


def test_no_cycles_and_no_long_chains():
    longest_chain(GRAPH)  # finds cycles, also through functions
    chain = longest_chain(AT_IMPORT)
    assert len(chain) <= LONGEST_CHAIN, " → ".join(chain)


def test_a_cycle_would_be_found():
    with pytest.raises(AssertionError, match="a → b → a"):
        longest_chain({"a": ["b"], "b": ["a"]})


def test_every_module_can_be_imported():
    """Also where there is no fcntl, as on Windows."""
    code = "import importlib, sys; sys.modules['fcntl'] = None; [importlib.import_module(f'tokenfield.{m}') for m in sys.argv[1:]]"
    names = [name for name in MODULES if name != "__main__"]
    done = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


def test_importing_the_front_door_imports_little():
    heavy = ["matplotlib", "xarray", "zarr", "pandas", "dask", "viser", "rich"]
    code = f"import sys, tokenfield; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_few_modules_at_the_root():
    assert len(list(PACKAGE.glob("*.py"))) <= 6


def test_theory_imports_nothing_of_the_simulator():
    allowed = {"errors", "geometry", "laws", "models", "theory"}
    for name, path in MODULES.items():
        if name.startswith("theory"):
            assert {other.partition(".")[0] for other in imports(path)} <= allowed, name


def classes():
    """Every class of the library: name, module, node."""
    for name, path in MODULES.items():
        for node in ast.parse(path.read_text(encoding="utf8")).body:
            if isinstance(node, ast.ClassDef):
                yield node.name, name, node


def test_no_two_classes_have_one_name():
    found = {}
    for name, module, _ in classes():
        found.setdefault(name, []).append(module)
    assert not {name: modules for name, modules in found.items() if len(modules) > 1}


def undocumented():
    """Public functions with three or more parameters whose docstring does not say what each of them is.

    A method that a base class of the library documents need not say it again; commands document options.
    """
    known = {(name, f.name) for name, _, c in classes() for f in c.body if isinstance(f, ast.FunctionDef)}
    bases = {name: [b.id for b in c.bases if isinstance(b, ast.Name)] for name, _, c in classes()}

    def inherited(kind, method):
        return any((b, method) in known or inherited(b, method) for b in bases.get(kind, []))

    for module, path in MODULES.items():
        if module == "cli":
            continue
        tree = ast.parse(path.read_text(encoding="utf8"))
        for owner in [tree, *(n for n in tree.body if isinstance(n, ast.ClassDef))]:
            for f in owner.body:
                if not isinstance(f, ast.FunctionDef) or f.name.startswith("_"):
                    continue
                inside = isinstance(owner, ast.ClassDef)
                if inside and (owner.name.startswith("_") or inherited(owner.name, f.name)):
                    continue
                given = [a.arg for a in (*f.args.args, *f.args.kwonlyargs) if a.arg not in ("self", "cls")]
                if len(given) >= 3 and "Args:" not in (ast.get_docstring(f) or ""):
                    yield f"{module}.{f.name}"


def test_arguments_are_documented():
    assert sorted(undocumented()) == []


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
