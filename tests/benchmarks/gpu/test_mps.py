from pathlib import Path

import pytest

from benchmarks.gpu import mps


def test_without_its_control_program_there_is_no_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(mps, "_FOLDERS", ())
    with mps.service(tmp_path / "mps", 1.0) as client:
        assert client == {}
    assert not (tmp_path / "mps").exists()


def test_a_service_that_no_process_can_use_is_ended_and_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported = tmp_path / "said"
    control = tmp_path / "nvidia-cuda-mps-control"
    # Without an argument it reads commands from its input, as the real one does.
    control.write_text(
        f'#!/bin/sh\n[ "$1" = -d ] && echo -d >>{reported} || /bin/cat >>{reported}\n'
    )
    control.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with mps.service(tmp_path / "mps", 60.0) as client:
        assert client == {}
    assert reported.read_text() == "-d\nquit\n"
