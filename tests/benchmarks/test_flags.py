"""Flags of the programs in this repository: they may be imported in one process, in any order."""

import importlib
from pathlib import Path

import pytest
from absl import flags

from benchmarks import case_flags

ROOT = Path(__file__).resolve().parents[2]
# Those of benchmarks/gpu need PyTorch.
PROGRAMS = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for folder in ("benchmarks", "tools")
    for path in (ROOT / folder).rglob("*.py")
    if "app.run(" in path.read_text() and "gpu" not in path.parts
)


@pytest.mark.parametrize("name", PROGRAMS)
def test_imported_a_program_defines_no_flags(name: str) -> None:
    importlib.import_module(name)
    assert name not in flags.FLAGS.flags_by_module_dict()


def test_there_are_programs() -> None:
    assert {"benchmarks.step_time", "benchmarks.soak", "tools.tensorboard_tab"} <= set(PROGRAMS)


@pytest.mark.parametrize(
    ("only", "selected"),
    [("", {"cnn, SGD", "cnn, SGD, batch x 4"}), ("SGD$", {"cnn, SGD"}), ("mlp", set())],
)
def test_cases_are_selected_by_a_part_or_the_end_of_their_name(
    only: str, selected: set[str]
) -> None:
    values = flags.FlagValues()
    case_flags.define(values, "cases", "docs/cases.md", rounds=1)
    values(["program", f"--only={only}"])
    names = ("cnn, SGD", "cnn, SGD, batch x 4")
    assert {name for name in names if case_flags.is_selected(values, name)} == selected
