"""Two functions with one log directory."""

import logging
from pathlib import Path

import pytest

from tf_libra.reporting.logdir_files import documents, write

NAMES = ("plan", "profile")


def test_each_function_has_files_of_its_own_and_one_line_says_so(tmp_path: Path) -> None:
    first, told = documents(tmp_path, "train_step", NAMES)
    assert first == {"plan": tmp_path / "plan.json", "profile": tmp_path / "profile.json"}
    assert told == ""
    other, told = documents(tmp_path / "." / "", "discriminate, trace 2", NAMES)
    assert other["plan"] == tmp_path / "plan.discriminate_trace_2.json"
    assert set(other.values()).isdisjoint(first.values())
    assert "plan.json of train_step; that of discriminate, trace 2 is" in told
    assert documents(tmp_path, "train_step", NAMES) == (first, "")
    assert documents(tmp_path / "another", "discriminate", NAMES)[1] == ""


def test_what_cannot_be_written_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("documents")
    write({tmp_path / "new" / "plan.json": "{}"}, log)
    assert (tmp_path / "new" / "plan.json").read_text() == "{}\n"
    assert not caplog.records
    write({tmp_path / "new" / "plan.json" / "below.json": "{}"}, log)
    assert "logdir: not everything could be written" in caplog.text
