"""The rooms of the package: who imports whom, and who needs no TensorFlow."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).resolve().parents[1]
PURE = ("specs", "cost_model", "planning", "simulation", "autotune", "strategies", "config")


def imports(path: Path) -> set[str]:
    """Full names of what a file of the package imports of the package."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name.startswith("tf_libra.")}


def room(name: str) -> str:
    return name.split(".")[1]


@pytest.fixture(scope="module")
def rooms() -> nx.DiGraph:
    """Packages, and single modules next to them; an edge from the importer to the imported."""
    graph: nx.DiGraph = nx.DiGraph()
    for path in sorted((ROOT / "tf_libra").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if path.parent == ROOT / "tf_libra" and path.stem == "__init__":
            continue  # names what users import, at first use
        graph.add_node(room(name))
        for imported in imports(path):
            if room(imported) != room(name):
                graph.add_edge(room(name), room(imported), by=name)
    return graph


def test_no_rooms_import_each_other_in_a_ring(rooms):
    rings = [sorted(ring) for ring in nx.strongly_connected_components(rooms) if len(ring) > 1]
    assert rings == []


def test_no_modules_import_each_other_in_a_ring():
    """Not even where the import stands in a function, or is for types alone."""
    paths = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path
        for path in (ROOT / "tf_libra").rglob("*.py")
        if path.stem != "__init__"
    }
    graph: nx.DiGraph = nx.DiGraph()
    for name, path in paths.items():
        for imported in imports(path):  # a module, or a name of one
            module = imported if imported in paths else imported.rpartition(".")[0]
            graph.add_edge(name, module)
    assert [sorted(ring) for ring in nx.strongly_connected_components(graph) if len(ring) > 1] == []
    assert nx.is_directed_acyclic_graph(graph)


@pytest.mark.parametrize("name", PURE)
def test_planning_needs_neither_tensorflow_nor_horovod(name):
    """Every module of the room is imported where both are missing."""
    place = ROOT / "tf_libra" / name
    paths = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in paths
    ]
    code = (
        "import importlib, sys\n"
        "sys.modules['tensorflow'] = sys.modules['horovod'] = sys.modules['keras'] = None\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def private_imports(path: Path) -> set[str]:
    """Private modules of TensorFlow and Keras that a file imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    private = ("tensorflow.python", "tensorflow.core", "tensorflow.compiler", "tensorflow.tsl")
    return {name for name in names if name.startswith((*private, "keras.src"))}


def test_tf_internal_alone_imports_private_modules_of_tensorflow():
    importers = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tf_libra").rglob("*.py")
        if private_imports(path)
    }
    assert importers == {"tf_libra/internal/tf_internal.py"}


def test_patch_table_alone_names_private_modules_of_tensorflow_in_text():
    namers = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tf_libra").rglob("*.py")
        if re.search(r"""["']tensorflow\.(python|core|compiler|tsl)\b""", path.read_text())
    }
    assert namers == {"tf_libra/internal/patches.py"}
