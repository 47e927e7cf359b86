"""The rooms of the package: who imports whom, and who needs no TensorFlow."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import networkx as nx
import pytest

from tools import make_docs

ROOT = Path(__file__).resolve().parents[1]
PATHS = ("optimize_to_plan", "profile_to_plan", "gradient_to_socket")
PURE = (
    "specs",
    "cost_model",
    "planning",
    "simulation",
    "autotune",
    "strategies",
    "config",
    "model_parallel/planning",
    "model_parallel/simulation",
)


@pytest.fixture(scope="module")
def rooms() -> nx.DiGraph:
    """Packages and top-level modules; an edge from the importer to the imported."""
    return make_docs.package_graph()


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
        for imported in make_docs.imported_modules(path):  # a module, or a name of one
            module = imported if imported in paths else imported.rpartition(".")[0]
            graph.add_edge(name, module)
    assert [sorted(ring) for ring in nx.strongly_connected_components(graph) if len(ring) > 1] == []
    assert nx.is_directed_acyclic_graph(graph)


def test_planning_needs_neither_tensorflow_nor_horovod():
    """Every module of these packages is imported in a process without both."""
    modules = []
    for name in PURE:
        package = ROOT / "tf_libra" / name
        paths = sorted(package.rglob("*.py")) if package.is_dir() else [package.with_suffix(".py")]
        modules += [
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
    private = ("tensorflow.python", "tensorflow.core", "tensorflow.compiler", "tensorflow.tsl")
    names = make_docs.imported_names(path)
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


def picture(name: str) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Returns the files of a picture in docs/architecture.md, by node, and its arrows."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    text = page.partition(f"<!-- path: {name} -->\n```mermaid\n")[2].partition("```")[0]
    files = dict(re.findall(r'(\w+)\["([^"]+)"\]', text))
    arrows = re.findall(r"^ *(\w+)\S* -->(?:\|.*\|)? *(\w+)", text, re.MULTILINE)
    return files, arrows


@pytest.mark.parametrize("name", PATHS)
def test_files_of_a_picture_exist(name):
    files, arrows = picture(name)
    assert 2 < len(files) <= 10
    assert files.keys() == {node for arrow in arrows for node in arrow}
    assert [path for path in files.values() if not (ROOT / path).is_file()] == []


def test_arrows_from_optimize_to_the_plan_are_imports():
    files, arrows = picture("optimize_to_plan")
    assert len(files) <= 8
    modules = {node: path.removesuffix(".py").replace("/", ".") for node, path in files.items()}
    for importer, imported in arrows:
        names = make_docs.imported_modules(ROOT / files[importer])
        module = modules[imported]
        assert any(name == module or name.startswith(f"{module}.") for name in names), module


# Loaded libraries and files, which stay the same while a process runs.
LOADED = {
    "tf_libra.internal.native.load",
    "tf_libra.internal.registry.load_systems",
    "tf_libra.profiling.xplane._messages",
    "tf_libra.reporting.tensorboard.plugin._static_files",
}
# A constant.
CONSTANTS = {
    "tf_libra.profiling.profiler_session._OPTIONS",
}
EMPTY = re.compile(
    r"\[\]|\{\}|(set|dict|list)\(\)"
    r"|(\w+\.)*(Counter|count|defaultdict|deque|WeakSet|Weak\w+Dictionary)\(.*\)"
)


def test_process_wide_state_is_declared_in_one_object():
    """State that changes while a process runs belongs to `process_state.STATE`."""
    cached, empty = set(), set()
    for path in sorted((ROOT / "tf_libra").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        tree = ast.parse(path.read_text())
        assert not any(isinstance(node, ast.Global) for node in ast.walk(tree)), module
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and not node.args.args:
                if any("cache" in ast.unparse(decorator) for decorator in node.decorator_list):
                    cached.add(f"{module}.{node.name}")
            elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                if EMPTY.fullmatch(ast.unparse(node.value)):
                    empty.add(f"{module}.{ast.unparse(target)}")
    assert cached == LOADED
    assert empty == CONSTANTS
