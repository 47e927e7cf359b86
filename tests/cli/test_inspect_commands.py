"""`tf-libra profile` on users' files; other commands are tested with the modules they call."""

import json
from pathlib import Path

import pytest

from tests.worker_processes import Job
from tf_libra.cli import main
from tf_libra.specs.backward_profile import BackwardProfile


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Returns the error of one line, with status 2 and nothing on standard output."""
    assert main(["profile", *arguments]) == 2
    reported = capsys.readouterr()
    assert reported.out == ""
    assert reported.err.count("\n") == 1
    assert reported.err.startswith("tf-libra profile: ")
    return reported.err


@pytest.mark.parametrize("name", ["missing", "two\nlines", "<script>", "x" * 300, "🐢"])
def test_no_such_trace(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, str(tmp_path / name))


def test_not_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "host.xplane.pb"
    path.write_bytes(b"\xff" * 50)
    assert "is not a trace of TensorFlow's profiler" in refused(capsys, str(path))
    assert "is not a trace of TensorFlow's profiler" in refused(capsys, str(tmp_path))
    path.write_bytes(b"")
    assert "without a plane /host:CPU" in refused(capsys, str(path))


def test_trace_file_or_newest_below_a_folder_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "got 0 arguments" in refused(capsys)
    assert "got 2 arguments" in refused(capsys, "a", "b")
    assert "holds no trace" in refused(capsys, str(tmp_path))


@pytest.mark.parametrize("content", [b"\xff\xfe", b"{}", b'{"format": "tf-libra plan"}'])
def test_bad_cost_model(
    traced: Job, tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    cost = tmp_path / "cost.json"
    cost.write_bytes(content)
    refused(capsys, str(traced.folder / "profiler.0"), "--cost", str(cost))


def test_profile_is_readable_by_the_planner(
    traced: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "profile.json"
    assert main(["profile", str(traced.folder / "keras.0"), "--out", str(out)]) == 0
    reported = capsys.readouterr()
    assert reported.out == ""
    assert "5 step(s)" in reported.err or "skipped" in reported.err
    profile = BackwardProfile.from_json(out.read_text())
    assert main(["profile", str(traced.folder / "keras.0")]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(profile.to_json())
