"""Links of pages lead to files and headings, and their commands to programs that have the flags."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from absl import flags

from tf_libra.cli.main import COMMANDS
from tf_libra.model_parallel.commands import burst, pipeline
from tools.make_docs import imported_names

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FAMILIES = {"burst": burst.COMMANDS, "pipeline": pipeline.COMMANDS}
# What a command line consists of, up to a comment, a pipe or the end of inline code.
REST = r"((?:[^\n`;&|#\\]|\\\n)*)"
PROGRAM = re.compile(rf"python3? (?:-m ((?:benchmarks|tools)[\w.]*)|((?:\w+/)+\w+\.py)){REST}")
TF_LIBRA = re.compile(rf"tf-libra (?!run)(?:(burst|pipeline) )?(\w+){REST}")
FLAG = re.compile(r"(?<![\w-])--([\w-]+)")
DEFINED = re.compile(r'(?:DEFINE_\w+\(\s*|add_argument\(\s*)"(?:--)?([\w-]+)"')


def without_code(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


@cache
def anchors(page: Path) -> set[str]:
    """Returns the fragments of a page's headings, as GitHub forms them."""
    headings = re.findall(r"^#+ (.*)$", without_code(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}


def broken_links(page: Path) -> Iterator[str]:
    """Yields the relative links of a page without a file, or without a heading of that name."""
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(page)):
        path, _, fragment = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        is_url = re.match(r"\w+:", link)
        if not is_url and not (target.exists() and (not fragment or fragment in anchors(target))):
            yield link


@cache
def flags_of_file(path: Path) -> frozenset[str]:
    """Returns the flags that a program, or a module outside of the package it imports, defines."""
    found = set(DEFINED.findall(path.read_text()))
    for name in imported_names(path):
        for module in (name, name.rpartition(".")[0]):
            file = f"{module.replace('.', '/')}.py"
            for folder in (ROOT, path.parent):
                if not module.startswith("tf_libra") and (folder / file).is_file():
                    found |= flags_of_file(folder / file)
    return frozenset(flag.replace("-", "_") for flag in found)


def program(module: str, path: str) -> Path:
    if path:
        return ROOT / path
    folder = ROOT / module.rstrip(".").replace(".", "/")
    return folder / "__main__.py" if folder.is_dir() else folder.with_suffix(".py")


def unknown_flags(page: Path) -> Iterator[str]:
    """Yields programs that are not there, and flags that they do not have."""
    text = page.read_text()
    for module, path, rest in PROGRAM.findall(text):
        file = program(module, path)
        if not file.is_file():
            yield module or path
            continue
        known = flags_of_file(file)
        for flag in FLAG.findall(rest):
            if known.isdisjoint({(name := flag.replace("-", "_")), name.removeprefix("no")}):
                yield f"{file.name} --{flag}"
    for family, name, rest in TF_LIBRA.findall(text):
        command = (FAMILIES[family] if family else COMMANDS).get(name)
        if command is not None:
            values = flags.FlagValues()
            command.define(values)
            yield from (f"{name} --{flag}" for flag in FLAG.findall(rest) if flag not in values)


def test_links_lead_to_files_and_headings() -> None:
    assert {page.name: found for page in PAGES if (found := list(broken_links(page)))} == {}


def test_programs_have_the_flags_of_commands() -> None:
    assert sum(len(PROGRAM.findall(page.read_text())) for page in PAGES) > 60
    assert {page.name: found for page in PAGES if (found := list(unknown_flags(page)))} == {}


def test_faults_are_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A heading\n\n[a](#a-heading) [b](#b) [c](gone.md) [d](https://example.org)\n\n"
        "    python -m benchmarks.pinning --colour 1 && python -m benchmarks.gone\n"
        "    tf-libra burst plan --profile P \\\n      --colour 1    # --comment\n"
    )
    assert list(broken_links(page)) == ["#b", "gone.md"]
    assert list(unknown_flags(page)) == ["pinning.py --colour", "benchmarks.gone", "plan --colour"]
