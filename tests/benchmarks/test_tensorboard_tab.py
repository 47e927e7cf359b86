"""The benchmark of records writes a plan, steps and traced steps."""

from pathlib import Path

import pytest

from benchmarks import tensorboard_tab


def test_records_of_a_plan_and_its_steps_are_timed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensorboard_tab.writing(tensorboard_tab.large_plan(12, 3), tmp_path, num_steps=5)
    *times, size = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in times] == [
        *("activation of a plan", "untraced step", "traced step")
    ]
    assert size.startswith("event file: ") and not size.endswith(": 0 kB")
