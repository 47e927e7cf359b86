"""Hosts of a command line: impossible ones are rejected before anything is started."""

import sys
from pathlib import Path

import horovod.tensorflow as hvd
import pytest

from tf_libra.launcher import job_checks
from tf_libra.launcher.job_checks import HorovodBuildInfo, built_with, check_hosts


@pytest.mark.parametrize("hosts", ["localhost:2", "one:1,other.local:3", "a:1, b:1", "10.0.0.1:4"])
def test_hosts_with_as_many_slots_are_taken(hosts: str) -> None:
    check_hosts(hosts, None, 2)
    check_hosts(hosts, None, None)


@pytest.mark.parametrize(
    ("hosts", "words"),
    [
        ("localhost:1", "-np 2 is more than -H localhost:1 has slots, 1"),
        ("a:1,b:0", "-np 2 is more than -H a:1,b:0 has slots, 1"),
        (":", "-H must be HOST:SLOTS, separated by commas, got ':'"),
        ("localhost", "got 'localhost'"),
        ("localhost:x", "got 'localhost:x'"),
        ("localhost:-1", "got 'localhost:-1'"),
        ("a:1,,b:1", "got ''"),
        ("<script>:2", "got '<script>:2'"),
    ],
)
def test_hosts_that_cannot_be_are_named(hosts: str, words: str) -> None:
    with pytest.raises(ValueError) as refused:
        check_hosts(hosts, None, 2)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"one slots=1\n", "-np 2 is more than hostfile"),
        (b"", "has slots, 0"),
        (b"one slots=1\nother\n", "line 2 must be HOST slots=NUMBER, got 'other'"),
        (b"one slots=1\n\ntwo slots=1\n", "line 2 must be HOST slots=NUMBER, got ''"),
        (b"one slots=many\n", "line 1 must be"),
        (b"\xff\xfe", "is not a text file"),
    ],
)
def test_files_of_hosts_that_cannot_be_are_named(
    tmp_path: Path, content: bytes, words: str
) -> None:
    path = tmp_path / "hosts"
    path.write_bytes(content)
    with pytest.raises(ValueError) as refused:
        check_hosts(None, str(path), 2)
    assert words in str(refused.value)
    assert str(path) in str(refused.value)


def test_files_of_hosts_are_read(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("one slots=1\n  other.local   slots=3  \n")
    check_hosts(None, str(path), 4)
    with pytest.raises(FileNotFoundError):
        check_hosts(None, f"{path}.missing", 2)


def test_hosts_that_come_and_go_may_be_too_few() -> None:
    check_hosts("localhost:1", None, 2, elastic=True)
    with pytest.raises(ValueError, match="-H must be"):
        check_hosts("localhost", None, 2, elastic=True)


def test_the_library_says_what_horovod_says() -> None:
    assert built_with() == HorovodBuildInfo(gloo=bool(hvd.gloo_built()), mpi=bool(hvd.mpi_built()))


def test_horovod_is_queried_if_its_library_cannot_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tensorflow").mkdir()
    folder = tmp_path / "horovod" / "tensorflow"
    folder.mkdir(parents=True)
    monkeypatch.setattr(job_checks, "_folder", lambda name: tmp_path / name)
    assert built_with() is None  # no library
    (folder / "mpi_lib.so").write_text("none")
    assert built_with() is None  # one that cannot be loaded
    monkeypatch.setattr(sys, "executable", str(tmp_path / "absent"))
    assert built_with() is None
    monkeypatch.setattr(job_checks, "_folder", lambda name: None)
    assert built_with() is None
