"""Horovod's launcher with an exit summary: `python -m tf_libra.launcher -np 2 ...`.

It is a separate process, because Horovod's helpers import the main module again.
"""

import codecs
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any, TextIO

from tf_libra.launcher import LAUNCHED_VARIABLE
from tf_libra.launcher.exit_summary import ExitSummary, new_summary, print_end
from tf_libra.launcher.job_checks import built_with, check_hosts

# Prefix of the lines of rank 0, which are shown without one.
_RANK_0 = re.compile(r"\A\[(?:\d+,)?0\]<(?:stdout|stderr)>:")


class Listening:
    """Stream that forwards lines, and feeds each line to an exit summary.

    Lines of rank 0 lose Horovod's prefix.
    """

    def __init__(self, stream: TextIO, outcome: ExitSummary) -> None:
        """Begins with an empty line."""
        self._stream, self._outcome = stream, outcome
        self._begun: dict[int, str] = {}

    def write(self, text: str) -> int:
        """Forwards complete lines that the summary does not hide."""
        # Each worker's output is written by another thread.
        thread = threading.get_ident()
        *lines, rest = (self._begun.pop(thread, "") + text).splitlines(keepends=True) or [""]
        if rest.endswith(("\n", "\r")):
            lines, rest = [*lines, rest], ""
        self._begun[thread] = rest
        shown = "".join(_RANK_0.sub("", line) for line in lines if self._outcome.read(line))
        if shown:
            self._stream.write(shown)
        return len(text)

    def flush(self) -> None:
        """Flushes the stream."""
        self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class TolerantCodecs:
    """Codecs for Horovod's launcher that decode workers' output even if it is not UTF-8.

    They replace the launcher's decoder, which raises on such output. After that, no more output of
    the worker would be shown, and the worker would block once the pipe is full.
    """

    @staticmethod
    def getincrementaldecoder(name: str) -> Callable[[], codecs.IncrementalDecoder]:
        """Returns a decoder that replaces invalid bytes."""
        return partial(codecs.getincrementaldecoder(name), errors="replace")


@contextmanager
def signals() -> Iterator[list[int]]:
    """Collects signals, even if other code handles them. The list is filled at the exit."""
    seen: list[int] = []
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    try:
        yield seen
    finally:
        signal.set_wakeup_fd(before)
        with suppress(BlockingIOError):  # none came
            seen += reader.recv(64)
        reader.close()
        writer.close()


def shutdown_event() -> threading.Event:
    """Returns an event that the first SIGINT or SIGTERM sets.

    It replaces Horovod's event, which deadlocks if a second signal arrives while the first is
    handled: the nested call waits for the event's own lock. timeout(1) sends SIGTERM both to its
    command and to the process group, so that two signals arrive at the same time.
    """
    event = threading.Event()
    seen: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        if not seen:
            seen.append(number)
            event.set()

    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGTERM, end)
    return event


def main(lasting: list[Any]) -> int:
    """Runs the job of the command line, and returns the exit status.

    Args:
        lasting: receives objects that must outlive every thread. Otherwise a thread that drops the
            last reference to an event of Horovod may be cut off at exit, and Python warns of leaked
            semaphores after the summary.
    """
    from horovod.runner import gloo_run, launch
    from horovod.runner.common.util import safe_shell_exec

    def lasting_event(context: Any) -> Any:
        lasting.append(context.Event())
        return lasting[-1]

    sys.argv[0] = "tf-libra run"  # for usage messages
    parsed = launch.parse_args()
    if not parsed.command:
        print(
            "tf-libra run: a command is required: tf-libra run -np 2 python train.py",
            file=sys.stderr,
        )
        return 2
    elastic = parsed.host_discovery_script is not None or parsed.min_num_proc is not None
    try:
        check_hosts(parsed.hosts, parsed.hostfile, parsed.num_proc, elastic)
    except OSError as problem:
        print(f"tf-libra run: hostfile {parsed.hostfile!r}: {problem.strerror}", file=sys.stderr)
        return 2
    except ValueError as problem:
        print(f"tf-libra run: {problem}", file=sys.stderr)
        return 2
    os.environ[LAUNCHED_VARIABLE] = "1"
    transports = built_with()
    if transports is not None:
        launch.gloo_built = lambda verbose=False: transports.gloo
        launch.mpi_built = lambda verbose=False: transports.mpi
    gloo_run.register_shutdown_event = shutdown_event
    safe_shell_exec._create_event = lasting_event
    safe_shell_exec.codecs = TolerantCodecs
    outcome = new_summary()
    out, err = sys.stdout, sys.stderr
    error: BaseException | None = None
    sys.stdout, sys.stderr = Listening(out, outcome), Listening(err, outcome)
    try:
        with signals() as seen:
            try:
                launch.run_commandline()
            except (Exception, KeyboardInterrupt) as raised:
                error = raised
    finally:
        sys.stdout, sys.stderr = out, err
    if isinstance(error, KeyboardInterrupt):
        seen.append(signal.SIGINT)
    return print_end(outcome, seen, None if error is None else str(error), err)


if __name__ == "__main__":
    lasting: list[Any] = []
    sys.exit(main(lasting))
