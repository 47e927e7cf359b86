"""Horovod's launcher, with an end that says what happened: `python -m tf_libra.launcher -np 2 ...`.

A process of its own, because Horovod starts its helpers by importing the main module again.
"""

import codecs
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any, TextIO

from tf_libra.launcher import LAUNCHED_VARIABLE, TRACEBACK_VARIABLE
from tf_libra.launcher.exit_summary import ExitSummary
from tf_libra.launcher.horovod_build_info import built_with
from tf_libra.launcher.host_validation import check_hosts

_INTERRUPTED = 128 + signal.SIGINT


class Listening:
    """A stream that passes on what is written, and tells an outcome each line of it."""

    def __init__(self, stream: TextIO, outcome: ExitSummary) -> None:
        """Begins with an empty line."""
        self._stream, self._outcome = stream, outcome
        self._begun: dict[int, str] = {}

    def write(self, text: str) -> int:
        """Passes on the lines that are complete and to be shown."""
        # Each worker's output is written by a thread of its own.
        thread = threading.get_ident()
        *lines, rest = (self._begun.pop(thread, "") + text).splitlines(keepends=True) or [""]
        if rest.endswith(("\n", "\r")):
            lines, rest = [*lines, rest], ""
        self._begun[thread] = rest
        shown = "".join(line for line in lines if self._outcome.read(line))
        if shown:
            self._stream.write(shown)
        return len(text)

    def flush(self) -> None:
        """Passes it on."""
        self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class TolerantCodecs:
    """Codecs for Horovod's launcher that decode the output of workers even if it is no UTF-8.

    They replace its own decoder, which raises there: then nothing of that worker is shown any more,
    and the worker waits as soon as the pipe is full.
    """

    @staticmethod
    def getincrementaldecoder(name: str) -> Callable[[], codecs.IncrementalDecoder]:
        """Return the decoder of an encoding, which replaces what it cannot decode."""
        return partial(codecs.getincrementaldecoder(name), errors="replace")


@contextmanager
def signals() -> Iterator[list[int]]:
    """Collects the signals that come, even if other code handles them; filled at the exit."""
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
    """Returns an event that the first SIGINT or SIGTERM sets, however many come and how fast.

    It replaces Horovod's, which a second signal stops for ever if it comes while the first is
    handled: setting an event twice, one within the other, waits for its own lock. timeout(1) sends
    SIGTERM to its command and to the group, so two come at the same time.
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
    """Runs the job that the command line asks for, and returns the exit status.

    Args:
        lasting: gets what must outlive every thread. The thread that drops the semaphores of
            Horovod's events last removes them; if the interpreter ends meanwhile, that thread is
            cut off in between, and Python complains of the semaphores after our last line.
    """
    from horovod.runner import gloo_run, launch
    from horovod.runner.common.util import safe_shell_exec

    def lasting_event(context: Any) -> Any:
        lasting.append(context.Event())
        return lasting[-1]

    sys.argv[0] = "tf-libra run"  # in what is said of the command line
    given = launch.parse_args()
    if not given.command:
        print(
            "tf-libra run: say what to start: tf-libra run -np 2 python train.py", file=sys.stderr
        )
        return 2
    elastic = given.host_discovery_script is not None or given.min_num_proc is not None
    try:
        check_hosts(given.hosts, given.hostfile, given.num_proc, elastic)
    except OSError as problem:
        print(f"tf-libra run: hostfile {given.hostfile!r}: {problem.strerror}", file=sys.stderr)
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
    outcome = ExitSummary()
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
    if signal.SIGINT in seen or isinstance(error, KeyboardInterrupt):
        print("tf-libra run: ended by Ctrl-C", file=err)
        return _INTERRUPTED
    if signal.SIGTERM in seen:
        print("tf-libra run: ended by SIGTERM", file=err)
        return 128 + signal.SIGTERM
    if error is None:
        return 0
    told = outcome.told()
    if not told:  # Horovod's own trouble, such as a host that cannot be reached
        print(f"tf-libra run: {error}", file=err)
        return 1
    print("\ntf-libra run: the job has ended with an error", *told, sep="\n", file=err)
    print(
        "What led there stands above, without the frames of libraries; with them under"
        f" {TRACEBACK_VARIABLE}=full.\nMore by symptom: docs/troubleshooting.md.",
        file=err,
    )
    return 1


if __name__ == "__main__":
    lasting: list[Any] = []
    sys.exit(main(lasting))
