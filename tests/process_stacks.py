"""The state of a process that does not end: Python stacks, and what each thread waits for.

A worker calls `register`; `describe` then asks it for the stacks of its Python threads. The kernel
names the others, which are those of TensorFlow, Horovod and the lanes.

    python tests/process_stacks.py SCRIPT [ARGUMENTS...]

runs a script whose stacks `describe` can show.
"""

import contextlib
import faulthandler
import os
import runpy
import signal
import sys
import time
from pathlib import Path

_SIGNAL = signal.SIGUSR2  # neither TF-Libra nor a test sends it to a worker
_DUMP_SECONDS = 10.0


def register() -> None:
    """Makes this process print its stacks to its standard error when `describe` wants them.

    It prints them, too, when a signal such as SIGSEGV ends it.
    """
    faulthandler.enable()
    faulthandler.register(_SIGNAL, all_threads=True, chain=False)


def describe(pid: int, output: Path) -> str:
    """Returns the threads of a process, and the stacks that it prints to `output` on request."""
    try:
        threads = _threads(pid)
        lines = [f"process {pid}: {_read(pid, 'cmdline').replace(chr(0), ' ').strip()}", *threads]
        if _is_registered(pid):
            lines.append(_stacks(pid, output))
        else:
            lines.append("it has not registered for its stacks")
    except OSError as error:
        return f"process {pid} has ended meanwhile ({error})"
    return "\n".join(lines)


def descendants(pid: int) -> list[int]:
    """Returns the processes that a process has started, and those that these have started."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # a process may end meanwhile
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            children.setdefault(int(parent), []).append(int(folder.name))
    found, waiting = [], children.get(pid, [])
    while waiting:
        found.append(waiting.pop(0))
        waiting += children.get(found[-1], [])
    return found


def _threads(pid: int) -> list[str]:
    """Returns a line for each thread: name, state, system call or function of the kernel."""
    lines = []
    for task in _tasks(pid):
        with contextlib.suppress(OSError):  # a thread may end meanwhile
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            name = (task / "comm").read_text().strip()
            lines.append(f"  thread {task.name} {name} {state} {_waits_in(task)}")
    return lines


def _waits_in(task: Path) -> str:
    """Returns what the kernel says of a thread's wait; it may say it to the superuser alone."""
    reported = []
    for file in ("wchan", "syscall"):
        with contextlib.suppress(OSError):
            reported.append(f"{file}: {(task / file).read_text().strip()}")
    return ", ".join(reported)


def _tasks(pid: int) -> list[Path]:
    with contextlib.suppress(FileNotFoundError):
        return sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda path: int(path.name))
    return []


def _is_registered(pid: int) -> bool:
    """Returns whether the process handles the signal, which ends one that does not."""
    for line in _read(pid, "status").splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (_SIGNAL - 1) & 1)
    return False


def _stacks(pid: int, output: Path) -> str:
    """Returns what the process appends to its output when it gets the signal."""
    before = output.stat().st_size
    os.kill(pid, _SIGNAL)
    until = time.monotonic() + _DUMP_SECONDS
    size, last = before, -1
    # The handler prints thread after thread; a process that is stopped prints nothing.
    while time.monotonic() < until and (size == before or size != last):
        time.sleep(0.5)
        last, size = size, output.stat().st_size
    with output.open("rb") as file:
        file.seek(before)
        printed = file.read().decode(errors="replace")
    return printed or f"it printed no stacks within {_DUMP_SECONDS:g} s"


def _read(pid: int, file: str) -> str:
    return Path(f"/proc/{pid}/{file}").read_text(errors="replace")


if __name__ == "__main__":
    register()
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
