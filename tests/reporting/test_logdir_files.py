"""Files of several functions in one log directory."""

import logging
from pathlib import Path

import pytest

from tf_libra.reporting.logdir_files import documents, write

NAMES = ("plan", "profile")


def test_later_functions_get_files_with_their_name(tmp_path: Path) -> None:
    first, message = documents(tmp_path, "train_step", NAMES)
    assert first == {"plan": tmp_path / "plan.json", "profile": tmp_path / "profile.json"}
    assert message == ""
    other, message = documents(tmp_path / "." / "", "discriminate, trace 2", NAMES)
    assert other["plan"] == tmp_path / "plan.discriminate_trace_2.json"
    assert set(other.values()).isdisjoint(first.values())
    for part in ("train_step", "discriminate, trace 2", "plan.discriminate_trace_2.json"):
        assert part in message
    assert documents(tmp_path, "train_step", NAMES) == (first, "")
    assert documents(tmp_path / "another", "discriminate", NAMES)[1] == ""


def test_write_failure_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("documents")
    write({tmp_path / "new" / "plan.json": "{}"}, log)
    assert (tmp_path / "new" / "plan.json").read_text() == "{}\n"
    assert not caplog.records
    write({tmp_path / "new" / "plan.json" / "below.json": "{}"}, log)
    [record] = caplog.records
    assert record.levelno == logging.WARNING and "plan.json" in record.getMessage()
