"""Flags of the programs in this repository: they may be imported in one process, in any order."""

import importlib
from pathlib import Path

import pytest
from absl import flags

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
