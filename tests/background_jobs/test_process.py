"""Background processes: the time that they may take, and that they stop on request."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import worker_processes
from tests.worker_processes import stat, state
from tf_libra.background_jobs.process import BackgroundProcess

# Counts into a file, and says under which policy.
COUNT = """
import os, sys
count = 0
while True:
    count += 1
    with open(sys.argv[1] + ".new", "w") as file:
        file.write(f"{count} {os.sched_getscheduler(0)} {os.getpid()}")
    os.replace(sys.argv[1] + ".new", sys.argv[1])
"""


def wait_until(true: Callable[[], bool]) -> None:
    """Waits long, as a process on idle time may be slow on a busy machine."""
    worker_processes.wait_until(true, 120.0)


def counted(path: Path) -> tuple[int, int, int]:
    if not path.exists():
        return 0, -1, 0
    count, policy, pid = path.read_text().split()
    return int(count), int(policy), int(pid)


def processor_seconds(pid: int) -> float:
    """Returns the processor time that the process has used so far."""
    user, system = stat(pid)[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def child_of(pid: int, number: int = 0) -> int:
    """Waits for it to be there."""

    def children() -> list[int]:
        paths = Path(f"/proc/{pid}/task").glob("*/children")
        return [int(part) for path in paths for part in path.read_text().split()]

    wait_until(lambda: len(children()) > number)
    return children()[number]


def test_runs_on_idle_time_and_loses_nothing_by_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine it may take long until it is scheduled, to end by itself.
    monkeypatch.setattr("tf_libra.background_jobs.process._GRACE_SECONDS", 120)
    path = tmp_path / "count"
    process = BackgroundProcess([sys.executable, "-c", COUNT, str(path)])
    try:
        wait_until(lambda: counted(path)[0] > 0)
        _, policy, pid = counted(path)
        assert policy == os.SCHED_IDLE
        process.pause()
        process.pause()
        assert process.is_paused
        wait_until(lambda: state(pid) == "T")
        before = counted(path)[0]
        process.resume()
        assert not process.is_paused
        wait_until(lambda: counted(path)[0] > before)
        assert process.status is None
    finally:
        process.end()
    assert state(pid) == ""
    assert process.status == -signal.SIGTERM
    process.end()


def test_takes_next_to_nothing_of_a_core_that_we_use(tmp_path: Path) -> None:
    """The kernel shares a core among sessions first, whatever runs in them."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    process = BackgroundProcess([sys.executable, "-c", COUNT, str(tmp_path / "count")])
    try:
        wait_until(lambda: counted(tmp_path / "count")[0] > 0)
        _, _, pid = counted(tmp_path / "count")
        before, start = processor_seconds(pid), time.process_time()
        while (ours := time.process_time() - start) < 1.0:
            pass
        assert processor_seconds(pid) - before < 0.2 * ours
    finally:
        os.sched_setaffinity(0, cores)
        process.end()


def test_is_not_reached_by_what_a_terminal_sends_us(tmp_path: Path) -> None:
    process = BackgroundProcess([sys.executable, "-c", COUNT, str(tmp_path / "count")])
    try:
        wait_until(lambda: counted(tmp_path / "count")[0] > 0)
        _, _, pid = counted(tmp_path / "count")
        supervisor = int(stat(pid)[1])
        assert os.getpgrp() not in (os.getpgid(pid), os.getpgid(supervisor))
    finally:
        process.end()


def test_one_that_is_paused_or_does_not_listen_ends_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a process is killed in the end: after a shorter while here."""
    monkeypatch.setattr("tf_libra.background_jobs.process._GRACE_SECONDS", 0.5)
    path = tmp_path / "count"
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + COUNT
    process = BackgroundProcess([sys.executable, "-c", deaf, str(path)])
    wait_until(lambda: counted(path)[0] > 0)
    process.pause()
    process.end()
    assert process.status == -signal.SIGKILL


def test_a_command_that_is_killed_is_known_by_its_signal() -> None:
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGABRT):
        process = BackgroundProcess(["bash", "-c", f"kill -{int(number)} $$"])
        wait_until(lambda process=process: process.status is not None)
        assert process.status == -number


def test_job_ends_with_its_starter_however_that_ends(tmp_path: Path) -> None:
    path = tmp_path / "count"
    start = (
        "import sys, time\n"
        "from tf_libra.background_jobs.process import BackgroundProcess\n"
        "BackgroundProcess(sys.argv[1:]).pause()\n"
        "time.sleep(600)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", start, "sleep", "600"])
    supervisor = child_of(owner.pid)
    command = child_of(supervisor)
    wait_until(lambda: state(command) == "T")
    owner.kill()
    owner.wait()
    wait_until(lambda: state(command) == state(supervisor) == "")
    assert not path.exists()


@pytest.mark.parametrize("is_paused", [False, True])
@pytest.mark.parametrize("who", ["owner", "thread", "supervisor"])
def test_children_of_a_command_end_with_it(who: str, is_paused: bool) -> None:
    """The owner is killed, or the thread that has started it ends, or its parent process ends."""
    start = (
        "import sys, threading\n"
        "from tf_libra.background_jobs.process import BackgroundProcess\n"
        "paused, *command = sys.argv[1:]\n"
        "def start():\n"
        "    process = BackgroundProcess(command)\n"
        "    sys.stdin.readline()\n"
        "    if paused == 'True': process.pause()\n"
        "    sys.stdin.readline()\n"
        "threading.Thread(target=start).start()\n"
        "threading.Event().wait()\n"
    )
    shell = ["bash", "-c", "sleep 600 & sleep 600; true"]
    with subprocess.Popen(
        [sys.executable, "-c", start, str(is_paused), *shell], stdin=subprocess.PIPE, bufsize=0
    ) as owner:
        try:
            assert owner.stdin is not None
            supervisor = child_of(owner.pid)
            command = child_of(supervisor)
            sleeping = [child_of(command, number) for number in range(2)]
            owner.stdin.write(b"\n")
            if is_paused:
                wait_until(lambda: all(state(process) == "T" for process in (command, *sleeping)))
                wait_until(lambda: state(supervisor) == "S")  # and not stopped with them
            if who == "thread":
                owner.stdin.write(b"\n")
            else:
                killed = {
                    "owner": (owner.pid, signal.SIGKILL),
                    "supervisor": (supervisor, signal.SIGTERM),
                }
                os.kill(*killed[who])
            wait_until(
                lambda: (
                    {state(process) for process in (supervisor, command, *sleeping)} <= {"", "Z"}
                )
            )
        finally:
            owner.kill()  # else leaving waits for it


def test_pipes_of_a_command_end_as_in_a_shell() -> None:
    """Python would have the command ignore SIGPIPE."""
    process = BackgroundProcess(["bash", "-c", "yes | head -1 > /dev/null; exit ${PIPESTATUS[0]}"])
    wait_until(lambda: process.status is not None)
    assert process.status == 128 + signal.SIGPIPE


def test_how_it_has_ended_is_known(tmp_path: Path) -> None:
    process = BackgroundProcess([sys.executable, "-c", "import sys; sys.exit(3)"])
    wait_until(lambda: process.status is not None)
    assert process.status == 3
    missing = BackgroundProcess([str(tmp_path / "nothing")])
    wait_until(lambda: missing.status is not None)
    assert missing.status == 127
    with pytest.raises(ValueError, match="command must name a program"):
        BackgroundProcess([])


def test_job_has_the_requested_environment(tmp_path: Path) -> None:
    path = tmp_path / "report"
    write = f"import os; open({str(path)!r}, 'w').write(os.environ['WHO'])"
    environment = {**os.environ, "WHO": "background"}
    process = BackgroundProcess([sys.executable, "-c", write], environment)
    wait_until(lambda: process.status is not None)
    assert path.read_text() == "background"
