"""What is told of a training function, and kept."""

import logging
from pathlib import Path
from typing import Any

import pytest

import tf_libra
from tf_libra.model.plan import Plan
from tf_libra.records.cache import Kept
from tf_libra.story.journal import Journal


def journal(**options: Any) -> Journal:
    return Journal(tf_libra.optimize(**options).keywords["options"])


def files(folder: Path) -> set[str]:
    return {path.name.split(".")[0] for path in folder.rglob("*") if path.is_file()}


def test_what_is_closed_writes_nothing_more(tmp_path: Path, three_groups: Plan) -> None:
    kept = Kept(three_groups, None, None)
    early, late = journal(logdir=tmp_path / "early"), journal(logdir=tmp_path / "late")
    early.close()
    for one in early, late:
        one.met(0)
        one.record("step")
        one.in_force(kept, "given", 1)
    assert files(tmp_path / "early") == set()
    written = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert files(tmp_path / "late") == {"plan", "events"}
    late.close()
    late.in_force(kept, "given", 2)
    late.took(2, 0.1, usual=True)
    late.executed(2, (0, 1), ())
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert set(after) == set(written)
    assert all(after[path].startswith(text) for path, text in written.items())
    assert late.explain()


@pytest.mark.parametrize("given", [False, True])
def test_plan_that_is_not_used_is_named(
    given: bool, plan_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = journal(plan=plan_file if given else None)
    with caplog.at_level(logging.INFO, logger="tf_libra"):
        one.left_to_horovod({"w": "op=Min"}, anything_else=False)
    assert "there is nothing to plan" in one.remarks[0]
    assert ("the plan given is not used" in one.remarks[0]) == given
