#!/usr/bin/env python3
"""Generates the tables, pictures and pages of the documentation that follow from the sources.

    python -m tools.make_docs            # rewrites what is out of date
    python -m tools.make_docs --check    # exits with 1 and names what is out of date

A generated block stands between `<!-- generated: NAME -->` and `<!-- end of NAME -->`;
docs/api.md is generated whole. Run it with the project's environment: it imports the package.
"""

import argparse
import ast
import dataclasses
import functools
import inspect
import operator
import os
import re
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import networkx as nx
import numpy.typing as npt

from benchmarks.markdown import table

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "tf_libra"
_BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n)(.*?)(<!-- end of \2 -->)", re.DOTALL)
# Public modules, each a section of the page.
_NAMESPACES = (
    "strategies", "planning", "pipelines", "bursts", "keras", "collectives", "elastic", "nccl"
)  # fmt: skip
# Modules that import public names at their first use.
_FACADES = [PACKAGE / f"{name}.py" for name in ("bursts", "pipelines", "strategies")]


# --- docs/options.md


def options() -> str:
    """Returns the table of the options of `optimize`."""
    from tf_libra.runtime.strategy_kinds import all_options

    rows = []
    for option in all_options():
        default = option.default if isinstance(option.default, str) else repr(option.default)
        rows.append((f"`{option.path}`", f"`{default}`", option.doc))
    return table(("option", "default", "effect"), rows)


def strategy_arguments() -> str:
    """Returns the table of the arguments of every strategy."""
    from tf_libra import strategies
    from tf_libra.planning.arguments import arguments_of

    kinds = [getattr(strategies, name) for name in strategies.__all__]
    rows = [
        (f"`{kind.__name__}({argument.name})`", f"`{argument.default!r}`", argument.doc)
        for kind in kinds
        if isinstance(kind, type) and hasattr(kind, "name")
        for argument in arguments_of(kind)
    ]
    return table(("argument", "default", "meaning"), rows)


def environment() -> str:
    """Returns the table of environment variables."""
    from tf_libra.launcher import env_vars

    return env_vars.table().rstrip("\n") + "\n"


# --- docs/process.md


def patches() -> str:
    """Returns the table of attributes that the package replaces in other libraries."""
    from tf_libra.internal import patches as declared

    rows = [(f"`{patch.module}`", f"`{patch.path}`", patch.why) for patch in declared.TABLE]
    return table(("module", "attribute", "reason"), rows)


# --- docs/architecture.md


def imported_names(path: Path) -> set[str]:
    """Returns the full names that a file imports, also in functions and for types alone."""
    tree = ast.parse(path.read_text())
    if path in _FACADES:  # imports public names at their first use, for types now
        tree.body = [node for node in tree.body if not isinstance(node, ast.If)]
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def imported_modules(path: Path) -> set[str]:
    """Returns the full names that a file imports from the package."""
    return {name for name in imported_names(path) if name.startswith("tf_libra.")}


def package_graph() -> nx.DiGraph:
    """Returns packages and top-level modules, with an edge from importer to imported."""
    graph: nx.DiGraph = nx.DiGraph()
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts == ("__init__",):
            continue  # imports public names at their first use
        graph.add_node(parts[0])
        for name in imported_modules(path):
            other = name.split(".")[1]
            if other != parts[0]:
                graph.add_edge(parts[0], other)
    return graph


def package_picture() -> str:
    """Returns the imports between packages, without those that follow from others."""
    arrows = sorted(nx.transitive_reduction(package_graph()).edges)
    lines = [f"    {importer} --> {imported}" for importer, imported in arrows]
    return "\n".join(["```mermaid", "graph TD", *lines, "```", ""])


def packages() -> str:
    """Returns the table of packages and top-level modules: first lines of their docstrings."""
    rows = []
    for path in sorted(PACKAGE.iterdir()):
        source = path / "__init__.py" if path.is_dir() else path
        if source.suffix == ".py" and source.is_file() and path.name != "__init__.py":
            name = f"{path.name}/" if path.is_dir() else path.name
            rows.append((f"`{name}`", _summary(ast.get_docstring(ast.parse(source.read_text())))))
    return table(("package", "contents"), rows)


# --- CONTRIBUTING.md


def modules_without_test() -> str:
    """Returns the modules of each package that have no test file of their own name."""
    found: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE)
        mirrored = ROOT / "tests" / name.with_name(f"test_{name.name}")
        if not name.stem.startswith("__") and not mirrored.exists():
            found.setdefault(name.parent.as_posix(), []).append(f"`{name.name}`")
    rows = [(f"`{package}/`", ", ".join(modules)) for package, modules in found.items()]
    return table(("package", "modules"), rows)


# --- docs/api.md


def api() -> str:
    """Returns the page of all public names, with signatures and docstrings."""
    import tf_libra

    lines = ["# API\n", "Generated by `make docs` from docstrings.\n"]
    modules = {name: getattr(tf_libra, name) for name in _NAMESPACES}
    elsewhere = {name for module in modules.values() for name in _public_names(module)}
    elsewhere -= {"optimize"}  # that of `keras` is another function
    names = [
        name
        for name in tf_libra.__all__
        if name not in elsewhere and name not in (*_NAMESPACES, "__version__")
    ]
    lines += [
        "Most names of `tf_libra.planning`, `tf_libra.pipelines` and `tf_libra.bursts` can also be"
        " imported from `tf_libra`.\n"
    ]
    lines += _section("tf_libra", ((name, getattr(tf_libra, name)) for name in names))
    for namespace in _NAMESPACES:
        module = modules[namespace]
        members = ((name, getattr(module, name)) for name in _public_names(module))
        lines += _section(f"tf_libra.{namespace}", members, module.__doc__)
    return "\n".join(lines)


def _public_names(module: Any) -> list[str]:
    """Returns what a module lists in `__all__`, or else the public names that it defines."""
    defined = [
        name
        for name, member in vars(module).items()
        if not name.startswith("_") and getattr(member, "__module__", None) == module.__name__
    ]
    return sorted(getattr(module, "__all__", defined))


def _section(title: str, members: Iterable[tuple[str, Any]], doc: str | None = None) -> list[str]:
    lines = [f"## {title}\n"]
    if doc:
        lines.append(f"{_summary(doc)}\n")
    for name, member in members:
        if callable(member):
            lines += _entry(f"{title}.{name}", member, "###")
            lines += [line for method in _methods(member) for line in method]
    return lines


def _methods(member: Any) -> Iterator[list[str]]:
    """Yields entries of the public methods and properties that a class defines."""
    if not isinstance(member, type):
        return
    documents = [name for name in ("to_json", "from_json") if hasattr(member, name)]
    inherited = {name: inspect.getattr_static(member, name) for name in documents}
    for name, value in (vars(member) | inherited).items():
        function = getattr(value, "__func__", getattr(value, "fget", value))
        if not name.startswith("_") and inspect.isfunction(function) and function.__doc__:
            kind = " (property)" if isinstance(value, property) else ""
            yield _entry(f"{member.__name__}.{name}", function, "####", kind)


def _entry(title: str, function: Any, level: str, suffix: str = "") -> list[str]:
    try:
        signature = "" if suffix else _plain(str(_portable(inspect.signature(function))))
    except (TypeError, ValueError):
        signature = ""
    short = title.rpartition(".")[2]
    text = inspect.getdoc(function) or ""
    if dataclasses.is_dataclass(function) and text.startswith(f"{short}("):
        text = ""  # made by dataclasses from the signature
    text += _declared_arguments(function)
    lines = [f"{level} {title}{suffix}\n"]
    if signature:
        lines.append(f"```python\n{short}{signature}\n```\n")
    if text:
        lines.append(f"```text\n{text}\n```\n")
    return lines


def _declared_arguments(strategy: Any) -> str:
    """Returns the section of the fields that a strategy declares with descriptions."""
    from tf_libra.planning.arguments import arguments_of

    if not (isinstance(strategy, type) and dataclasses.is_dataclass(strategy)):
        return ""
    entries = [
        textwrap.fill(
            f"{argument.name}: {argument.doc}", 96, initial_indent="  ", subsequent_indent="    "
        )
        for argument in arguments_of(strategy)
        if argument.doc
    ]
    return "\n".join(["\n\nAttributes:", *entries]) if entries else ""


class _Source:
    """Stand-in for a default whose `repr` differs between machines."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _portable(signature: inspect.Signature) -> inspect.Signature:
    """Returns a signature without checks in annotations and without values of this machine."""
    parameters = []
    for parameter in signature.parameters.values():
        default = parameter.default
        if default is os.environ:
            default = _Source("os.environ")
        elif isinstance(default, Path):
            default = _Source(default.name)
        annotation = _without_checks(parameter.annotation)
        parameters.append(parameter.replace(annotation=annotation, default=default))
    return signature.replace(parameters=parameters)


def _without_checks(hint: Any) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _without_checks(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return functools.reduce(operator.or_, map(_without_checks, arguments))
    inside = tuple(map(_without_checks, arguments))
    return types.GenericAlias(tuple, inside) if origin is tuple else hint


def _plain(signature: str) -> str:
    """Returns a signature without addresses of objects and module prefixes of annotations."""
    for kind, name in ((npt.ArrayLike | None, "ArrayLike | None"), (npt.ArrayLike, "ArrayLike")):
        signature = signature.replace(inspect.formatannotation(kind), name)
    signature = re.sub(r"<([\w. ]+) at 0x[0-9a-f]+>", r"<\1>", signature)
    signature = re.sub(
        r"\b(?:tf_libra|collections|typing|pathlib|numpy)\.(?:\w+\.)*", "", signature
    )
    return signature.replace("'", "").replace("NoneType", "None")


def _summary(doc: str | None) -> str:
    return (doc or "").strip().split("\n\n")[0].replace("\n", " ").strip()


# --- files

BLOCKS: dict[str, dict[str, Callable[[], str]]] = {
    "docs/options.md": {
        "options": options, "strategy_arguments": strategy_arguments, "environment": environment
    },
    "docs/process.md": {"patches": patches},
    "docs/architecture.md": {"package_picture": package_picture, "packages": packages},
    "CONTRIBUTING.md": {"modules_without_test": modules_without_test},
}  # fmt: skip
PAGES: dict[str, Callable[[], str]] = {"docs/api.md": api}


def filled(page: str, blocks: dict[str, Callable[[], str]], text: str) -> str:
    """Returns a page with its generated blocks up to date.

    Raises:
        ValueError: the marks of the page are not those of `blocks`.
    """
    marks = {name for _, name, _, _ in _BLOCK.findall(text)}
    if marks != set(blocks):
        raise ValueError(f"{page}: marks must be {sorted(blocks)}, got {sorted(marks)}")
    return _BLOCK.sub(lambda match: f"{match[1]}{blocks[match[2]]()}{match[4]}", text)


def generated() -> dict[str, str]:
    """Returns the expected text of every page that is generated or has generated blocks."""
    pages = {page: make() for page, make in PAGES.items()}
    for page, blocks in BLOCKS.items():
        pages[page] = filled(page, blocks, (ROOT / page).read_text())
    return pages


def main(argv: Sequence[str]) -> int:
    """Rewrites or checks all generated pages; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 instead")
    check = parser.parse_args(argv).check
    stale = 0
    for page, text in generated().items():
        path = ROOT / page
        if not path.exists() or path.read_text() != text:
            stale += 1
            print(f"{page} {'is out of date: run make docs' if check else 'updated'}")
            if not check:
                path.write_text(text)
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
