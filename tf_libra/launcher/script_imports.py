"""Search for imports of Horovod in a training script, without executing it.

Modules that the script imports from its own folder are searched, too.
"""

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "horovod"
# An import below `try` with one of these handlers is optional.
_HANDLED = ("ImportError", "ModuleNotFoundError", "Exception", "BaseException")
# The search ends here, as in a tree that has an environment within it.
_MAX_FILES = 1000


@dataclass(frozen=True)
class HorovodImport:
    """Import of Horovod.

    Attributes:
        file: file that has the import.
        line: its line, from 1.
        is_optional: whether the script handles the absence of Horovod.
    """

    file: Path
    line: int
    is_optional: bool


@dataclass(frozen=True)
class _Import:
    """Modules that one statement names: `a.b.c`, or `a.b` and `a.b.c` of `from a.b import c`."""

    names: tuple[str, ...]
    level: int
    line: int
    is_optional: bool


def find_horovod_import(command: Sequence[str]) -> HorovodImport | None:
    """Returns an import of Horovod by the script of a command line; None if it has none.

    A required import is returned rather than an optional one.

    Args:
        command: command line of a worker, such as `python train.py` or `python -m package.train`.
    """
    found = _find_script(command)
    if found is None:
        return None
    script, folder = found
    optional: HorovodImport | None = None
    pending, seen = [script], {script}
    while pending:
        file = pending.pop()
        for statement in _imports(file):
            if statement.level == 0 and any(
                name.partition(".")[0] == PACKAGE for name in statement.names
            ):
                result = HorovodImport(file, statement.line, statement.is_optional)
                if not result.is_optional:
                    return result
                optional = optional or result
                continue
            # One dot: the folder of the file.
            base = (
                file.parents[min(statement.level, len(file.parents)) - 1]
                if statement.level
                else folder
            )
            for name in statement.names:
                new = [path for path in _files(base, name) if path not in seen]
                seen.update(new)
                pending += new
        if len(seen) > _MAX_FILES:
            break
    return optional


def _find_script(command: Sequence[str]) -> tuple[Path, Path] | None:
    """Returns the script of a command line, and the folder that Python imports modules from."""
    for index, argument in enumerate(command):
        following = command[index + 1] if index + 1 < len(command) else ""
        if argument == "-m" and following:
            folder = Path.cwd()
            files = _files(folder, following)
            main = files[-1].with_name("__main__.py") if files else None
            if main is not None and files[-1].name == "__init__.py" and main.is_file():
                return main, folder
            if files:
                return files[-1], folder
        if argument.endswith(".py") and Path(argument).is_file():
            script = Path(argument).resolve()
            return script, script.parent
    return None


def _files(folder: Path, name: str) -> list[Path]:
    """Returns the files that an import of a module executes, if the folder has the module."""
    found: list[Path] = []
    parts = [part for part in name.split(".") if part]
    if not parts and (folder / "__init__.py").is_file():
        return [folder / "__init__.py"]
    for part in parts:
        folder = folder / part
        if folder.is_dir():
            if (folder / "__init__.py").is_file():
                found.append(folder / "__init__.py")
            continue
        module = folder.with_suffix(".py")
        return [*found, module] if module.is_file() else found
    return found


def _imports(file: Path) -> Iterator[_Import]:
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return  # Python itself will report it
    yield from _statements(tree, False)


def _statements(node: ast.AST, is_optional: bool) -> Iterator[_Import]:
    match node:
        case ast.Import():
            for alias in node.names:
                yield _Import((alias.name,), 0, node.lineno, is_optional)
        case ast.ImportFrom():
            base = node.module or ""
            members = [f"{base}.{alias.name}".strip(".") for alias in node.names]
            yield _Import((base, *members), node.level, node.lineno, is_optional)
        case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
            yield from _children(node.orelse, is_optional)
        case ast.Try() if any(_handles_absence(handler) for handler in node.handlers):
            yield from _children(node.body, True)
            yield from _children([*node.handlers, *node.orelse, *node.finalbody], is_optional)
        case _:
            yield from _children(ast.iter_child_nodes(node), is_optional)


def _children(nodes: Iterable[ast.AST], is_optional: bool) -> Iterator[_Import]:
    for node in nodes:
        yield from _statements(node, is_optional)


def _handles_absence(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(isinstance(kind, ast.Name) and kind.id in _HANDLED for kind in kinds)
