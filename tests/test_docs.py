"""The names that pages quote exist: modules, their members, messages."""

import ast
import re
from pathlib import Path

from tf_libra.runtime.strategy_kinds import all_options

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
PACKAGE = ROOT / "tf_libra"
# Pages use this name for Keras itself.
NO_ROOMS = ("keras",)
QUOTED = re.compile(r"`([^`\n]+)`")


def messages() -> str:
    """The program's sources, texts over several lines in one."""
    folders = [ROOT / folder for folder in ("tf_libra", "tools", "ops", "passes")]
    kinds = ("*.py", "*.cc", "*.js")
    texts = [
        path.read_text() for folder in folders for kind in kinds for path in folder.rglob(kind)
    ]
    return re.sub(r'"\s*\n\s*f?"', "", "\n".join(texts))


def test_symptoms_are_words_of_the_program() -> None:
    """Quoted symptoms are compared without placeholders for a number, a name or more."""
    rows = re.findall(r"^\| (.*?) \|", (DOCS / "troubleshooting.md").read_text(), re.MULTILINE)
    quoted = [quotation for row in rows for quotation in QUOTED.findall(row)]
    assert len(quoted) > 10
    known = messages()
    parts = [part for quotation in quoted for part in re.split(r"\.\.\.|\b[NM]\b|\[|: ", quotation)]
    assert [part for part in parts if part.strip() and part.strip() not in known] == []


def names_in(body: list[ast.stmt]) -> dict[str, list[ast.stmt]]:
    """Returns the members of a module or a class, by name; for a class its body."""
    found: dict[str, list[ast.stmt]] = {}
    for statement in body:
        match statement:
            case ast.ClassDef():
                found[statement.name] = statement.body
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                found[statement.name] = []
            case ast.Import() | ast.ImportFrom():
                found |= {alias.asname or alias.name: [] for alias in statement.names}
            case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List(elts=listed)):
                # Some are imported on first use.
                found |= {name.value: [] for name in listed if isinstance(name, ast.Constant)}
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                found[name] = []
    return found


def resolves(dotted: str) -> bool:
    """Returns whether a name below the package is a module or its member; nothing is imported."""
    package_folder, parts = PACKAGE, dotted.split(".")
    while parts and (package_folder / parts[0]).is_dir():
        package_folder /= parts.pop(0)
    file = package_folder / f"{parts[0]}.py" if parts else package_folder / "__init__.py"
    if parts and file.is_file():
        parts.pop(0)
    else:
        file = package_folder / "__init__.py"
    if not file.is_file():
        return False
    names = names_in(ast.parse(file.read_text()).body)
    for part in parts:
        if part not in names:
            return False
        names = names_in(names[part])
    return True


def dotted_names(page: Path) -> list[str]:
    """Returns the names in inline code: after `tf_libra` anywhere, after a room if they fill it."""
    rooms = [path.parent.name for path in PACKAGE.glob("*/__init__.py")]
    room = "|".join(sorted(set(rooms) - set(NO_ROOMS)))
    fields = {f"{option.group}.{option.name}" for option in all_options()}
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    found = []
    for code in QUOTED.findall(text):
        found += re.findall(r"(?<![\w./])tf_libra((?:\.[A-Za-z_]\w*)+)(?!\w*/)", code)
        whole = re.fullmatch(rf"((?:{room})(?:\.[A-Za-z_]\w*)+)(?:\(.*\))?", code)
        is_file = code.endswith((".py", ".json"))
        found += [f".{whole[1]}"] if whole and not is_file and code not in fields else []
    return [name.removeprefix(".") for name in found]


def test_dotted_names_are_there() -> None:
    found = {(page.name, name) for page in PAGES for name in dotted_names(page)}
    assert len(found) > 80
    assert sorted((page, name) for page, name in found if not resolves(name)) == []


def test_a_name_that_is_gone_is_noticed() -> None:
    """Names of a module, its members, a class's members; and names that packages re-export."""
    there = (
        "autotune.search_tuner.SearchTuner",
        "model_parallel.partition.layout.Layout.from_burst_plan",
        "optimize",
    )
    assert all(
        map(
            resolves,
            (*there, "keras.optimize", "model_parallel.planning.burst", "strategies.Libra"),
        )
    )
    gone = (
        "autotune.search_tuner.tune",
        "autotune.by_magic",
        "model_parallel.partition.layout.Layout.of",
        "magic",
    )
    assert not any(map(resolves, gone))
