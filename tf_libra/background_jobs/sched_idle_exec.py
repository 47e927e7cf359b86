"""Supervisor of a command under idle scheduling.

    python -m tf_libra.background_jobs.sched_idle_exec PARENT DESCRIPTOR COMMAND [ARGUMENTS...]

`SCHED_IDLE` applies to all threads and processes of the command. They form a process group, which
can be paused without pausing this process; its number is written to DESCRIPTOR. The whole group is
killed, even if paused, on SIGTERM or when the thread of process PARENT that started this process
ends. Otherwise this process ends as the command does: with its status or by its signal.
"""

import contextlib
import os
import resource
import signal
import sys
from typing import Any, Never

from tf_libra.internal.parent_death import signal_with_parent


def main() -> int:
    """Run the command and return its status."""
    parent, report_descriptor, *command = sys.argv[1:]
    descriptor = int(report_descriptor)
    os.set_inheritable(descriptor, False)
    # The signal is blocked until the group exists.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    signal_with_parent(signal.SIGTERM)
    if os.getppid() != int(parent):  # the parent ended before prctl
        return 1
    mine = os.getpid()
    group = os.fork()
    if group == 0:
        _become(command, mine, before)
    with contextlib.suppress(
        PermissionError, ProcessLookupError
    ):  # the child has replaced itself by the command
        os.setpgid(group, group)

    def end(number: int, frame: Any) -> Never:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        os._exit(128 + number)

    signal.signal(signal.SIGTERM, end)
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{group}\n")
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    _, status = os.waitpid(group, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else _killed_by(-code)


def _become(command: list[str], parent: int, mask: set[Any]) -> Never:
    """Replace this process by the command, in its own group."""
    os.setpgid(0, 0)
    signal_with_parent(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # ignored by Python
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"tf-libra: cannot run {command[0]!r}: {error.strerror}", file=sys.stderr)
        sys.stderr.flush()
        os._exit(127)


def _killed_by(number: int) -> int:
    """End this process by a signal; return a status only if the signal does not end processes."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the command has dumped its core
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number


if __name__ == "__main__":
    sys.exit(main())
