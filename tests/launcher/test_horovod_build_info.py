"""The build features of Horovod, by its library alone, are those that Horovod itself reports."""

import sys
from pathlib import Path

import horovod.tensorflow as hvd
import pytest

from tf_libra.launcher import horovod_build_info
from tf_libra.launcher.horovod_build_info import HorovodBuildInfo, built_with


def test_the_library_says_what_horovod_says() -> None:
    assert built_with() == HorovodBuildInfo(gloo=bool(hvd.gloo_built()), mpi=bool(hvd.mpi_built()))


def test_horovod_is_queried_if_its_library_cannot_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tensorflow").mkdir()
    folder = tmp_path / "horovod" / "tensorflow"
    folder.mkdir(parents=True)
    monkeypatch.setattr(horovod_build_info, "_folder", lambda name: tmp_path / name)
    assert built_with() is None  # no library
    (folder / "mpi_lib.so").write_text("none")
    assert built_with() is None  # one that cannot be loaded
    monkeypatch.setattr(sys, "executable", str(tmp_path / "absent"))
    assert built_with() is None
    monkeypatch.setattr(horovod_build_info, "_folder", lambda name: None)
    assert built_with() is None
