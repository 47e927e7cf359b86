import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tools import build_horovod

SCRIPT = build_horovod.__file__


def test_headers_that_tensorflow_lacks_are_forwarded_and_no_others(tmp_path: Path) -> None:
    include, folder = tmp_path / "include", tmp_path / "forward"
    present = "tensorflow/compiler/xla/shape.h"
    for path in (present, *build_horovod.FORWARDED.values()):
        (include / path).parent.mkdir(parents=True, exist_ok=True)
        (include / path).touch()
    written = set(build_horovod.forwarding_headers(include, folder))
    assert written == set(build_horovod.FORWARDED) - {present}
    header = folder / "tensorflow/compiler/xla/client/xla_builder.h"
    assert header.read_text() == '#include "xla/hlo/builder/xla_builder.h"\n'


def test_a_header_that_is_nowhere_is_named(tmp_path: Path) -> None:
    with pytest.raises(build_horovod.BuildError, match=r"client/xla_builder\.h"):
        list(build_horovod.forwarding_headers(tmp_path, tmp_path / "forward"))


def test_the_headers_of_this_tensorflow_suffice(tmp_path: Path) -> None:
    tensorflow = build_horovod.find_tensorflow()
    forwarded = set(build_horovod.forwarding_headers(tensorflow.include, tmp_path))
    for wanted in build_horovod.FORWARDED:
        assert (tensorflow.include / wanted).exists() != (wanted in forwarded)


def test_does_nothing_where_horovod_works(tmp_path: Path) -> None:
    # An empty cache: had it anything to install, it would have to build it first.
    done = subprocess.run(
        [sys.executable, SCRIPT, "--cache-dir", tmp_path], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("is installed and works")
    assert list(tmp_path.iterdir()) == []


def test_without_tensorflow_it_says_what_to_install(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    done = subprocess.run([python, SCRIPT], capture_output=True, text=True)
    assert done.returncode == 1
    assert "install TensorFlow 2.18.x or 2.21.x first" in done.stderr
    assert len(done.stderr.splitlines()) == 1
