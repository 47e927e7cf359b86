"""How many steps a background job has made."""

import subprocess
import sys

import pytest

from tf_libra.multiplexing.counting import COUNT_VARIABLE, StepCount, counter


def test_steps_are_counted_across_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    count = StepCount()
    assert count.read() is None
    monkeypatch.setenv(COUNT_VARIABLE, str(count.path))
    code = "from tf_libra.multiplexing.counting import counter; step = counter(); step(); step()"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert count.read() == 2
    count.end()
    assert not count.path.exists()
    assert count.read() == 2


@pytest.mark.parametrize("content", [None, b"", b"abc"])
def test_without_a_file_to_count_in_nothing_is_counted(
    content: bytes | None, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "count"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv(COUNT_VARIABLE, str(path))
    counter()()
    monkeypatch.delenv(COUNT_VARIABLE)
    counter()()
    assert (path.read_bytes() if path.exists() else None) == content
