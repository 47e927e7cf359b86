"""Job of ranks on this host, which get their place by the variables of torchrun.

One loop in the main thread forwards their output, waits for their ends, and ends the others if one
fails or a signal arrives.
"""

import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import IO, BinaryIO

from tf_libra.internal.parent_death import signal_with_parent
from tf_libra.launcher import (
    LAUNCHED_VARIABLE,
    SECRET_FILE_VARIABLE,
    SECRET_VARIABLE,
    SELECT_VARIABLE,
)
from tf_libra.launcher.exit_summary import ExitSummary, new_summary, print_end

_ADDRESS = "127.0.0.1"
# Between SIGTERM and SIGKILL: ranks write their reports.
_GRACE_SECONDS = 10.0
_READ_BYTES = 1 << 16
_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(command: Sequence[str], num_ranks: int, environment: Mapping[str, str]) -> int:
    """Runs a command as the ranks of a job, and returns the exit status of the launcher.

    Args:
        command: program and arguments of each rank.
        num_ranks: number of ranks.
        environment: environment of every rank, to which the variables of its place are added.
    """
    summary = new_summary(environment)
    with _reserved_port() as port, _wakeup() as reader:
        try:
            job = _Job(command, rank_environments(num_ranks, port, environment), summary, reader)
        except OSError as error:
            reason = error.strerror or str(error)
            print(f"tf-libra run: {command[0]!r} cannot be started: {reason}", file=sys.stderr)
            return 2
        failed = job.run()
    failure = "the job has ended with an error" if failed else None
    return print_end(summary, job.signals, failure, sys.stderr)


def rank_environments(
    num_ranks: int, port: int, environment: Mapping[str, str]
) -> list[dict[str, str]]:
    """Returns the environment of each rank.

    Args:
        num_ranks: number of ranks.
        port: port of this host at which rank 0 listens.
        environment: what all ranks have.
    """
    common = {
        name: value for name, value in environment.items() if not name.startswith("TORCHELASTIC_")
    }
    if not any(name in environment for name in (SECRET_VARIABLE, SECRET_FILE_VARIABLE)):
        common[SECRET_VARIABLE] = secrets.token_hex(32)
    common |= {
        LAUNCHED_VARIABLE: "1",
        SELECT_VARIABLE: "torchrun",
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": _ADDRESS,
        "MASTER_PORT": str(port),
    }
    return [common | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(num_ranks)]


@contextmanager
def _reserved_port() -> Iterator[int]:
    """Yields a port of this host that other programs do not get while the job runs.

    The socket is bound and does not listen, so that a socket with SO_REUSEADDR may listen there.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((_ADDRESS, 0))
        yield holder.getsockname()[1]


@contextmanager
def _wakeup() -> Iterator[socket.socket]:
    """Yields a socket that receives the number of each signal that ends the job or a rank."""

    def ignore(number: int, frame: FrameType | None) -> None:
        pass

    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    before = {}
    for number in (*_ENDING_SIGNALS, signal.SIGCHLD):
        if number == signal.SIGCHLD or signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            before[number] = signal.signal(number, ignore)
    descriptor = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(descriptor)
        for number, handler in before.items():
            signal.signal(number, handler)
        reader.close()
        writer.close()


class _Output:
    """Output stream of a rank, forwarded line by line; lines of rank 0 have no prefix."""

    def __init__(
        self, rank: int, name: str, source: IO[bytes], target: BinaryIO, summary: ExitSummary
    ) -> None:
        self._prefix = b"" if rank == 0 else f"[{rank}]<{name}>:".encode()
        self._read_line = partial(summary.read_worker_line, rank, name)
        self.source, self._target = source, target
        self._begun = b""
        os.set_blocking(source.fileno(), False)

    def forward(self) -> bool:
        """Forwards complete lines that have arrived; returns False at the stream's end.

        Raises:
            BlockingIOError: nothing has arrived.
            BrokenPipeError: the launcher's own output is closed.
        """
        data = os.read(self.source.fileno(), _READ_BYTES)
        text = self._begun + data
        lines = text.splitlines(keepends=True)
        self._begun = b"" if not data or not lines or lines[-1][-1:] in b"\r\n" else lines.pop()
        for line in lines:
            if self._read_line(line.decode(errors="replace")):
                self._target.write(self._prefix + line)
                if not data and line[-1:] not in b"\r\n":
                    self._target.write(b"\n")
        self._target.flush()
        return bool(data)

    def drain(self) -> None:
        """Forwards what has arrived so far."""
        with suppress(BlockingIOError, BrokenPipeError):
            while not self.source.closed and self.forward():
                pass


class _Job:
    """Ranks that run.

    Attributes:
        signals: signals by which the launcher is to end the job.
    """

    def __init__(
        self,
        command: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        summary: ExitSummary,
        wakeup: socket.socket,
    ) -> None:
        """Starts the ranks.

        Raises:
            OSError: the command cannot be started.
        """
        self.signals: list[int] = []
        self._summary = summary
        self._wakeup = wakeup
        self._selector = selectors.DefaultSelector()
        self._selector.register(wakeup, selectors.EVENT_READ, self._read_signals)
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._groups: list[int] = []
        self._outputs: list[_Output] = []
        self._is_failed = self._is_ending = self._is_killed = False
        self._kill_at: float | None = None
        try:
            for rank, environment in enumerate(environments):
                self._start(rank, command, environment)
        except OSError:
            self._signal_groups(signal.SIGKILL)
            raise

    def _start(self, rank: int, command: Sequence[str], environment: Mapping[str, str]) -> None:
        # A session of its own: Ctrl-C in the terminal reaches the launcher alone, which forwards
        # it as SIGTERM. If the launcher is killed, so are the ranks.
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=partial(_end_with, os.getpid()),
        )
        assert process.stdout is not None and process.stderr is not None
        self._running[rank] = process
        self._groups.append(process.pid)
        for name, source, target in (
            ("stdout", process.stdout, sys.stdout.buffer),
            ("stderr", process.stderr, sys.stderr.buffer),
        ):
            output = _Output(rank, name, source, target, self._summary)
            self._outputs.append(output)
            self._selector.register(source, selectors.EVENT_READ, partial(self._forward, output))

    def run(self) -> bool:
        """Waits until all ranks have ended; returns whether one has failed."""
        while self._running or (self._is_ending and self._has_output() and not self._is_killed):
            timeout = None if self._kill_at is None else max(0.0, self._kill_at - time.monotonic())
            for key, _ in self._selector.select(timeout):
                key.data()
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._kill_at, self._is_killed = None, True
                self._signal_groups(signal.SIGKILL)
            self._reap()
        for output in self._outputs:
            output.drain()
        return self._is_failed

    def _has_output(self) -> bool:
        """Returns whether processes that ranks have started may still print."""
        return any(not output.source.closed for output in self._outputs)

    def _forward(self, output: _Output) -> None:
        try:
            if output.forward():
                return
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._is_failed = True
            self._end()
        self._selector.unregister(output.source)
        output.source.close()

    def _read_signals(self) -> None:
        with suppress(BlockingIOError):
            for number in self._wakeup.recv(_READ_BYTES):
                if number in _ENDING_SIGNALS:
                    self.signals.append(number)
                    self._end()

    def _reap(self) -> None:
        for rank, process in list(self._running.items()):
            status = process.poll()
            if status is None:
                continue
            del self._running[rank]
            for output in self._outputs[2 * rank : 2 * rank + 2]:
                output.drain()  # its error precedes its end
            if status:
                self._summary.add_status(rank, status if status > 0 else 128 - status)
                self._is_failed = True
                self._end()

    def _end(self) -> None:
        """Begins to end all ranks: SIGTERM, and after some seconds SIGKILL."""
        if not self._is_ending:
            self._is_ending = True
            self._kill_at = time.monotonic() + _GRACE_SECONDS
            self._signal_groups(signal.SIGTERM)

    def _signal_groups(self, number: int) -> None:
        for rank, group in enumerate(self._groups):
            # The number of a group that has ended may be another's.
            outputs = self._outputs[2 * rank : 2 * rank + 2]
            if rank in self._running or any(not output.source.closed for output in outputs):
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(group, number)


def _end_with(parent: int) -> None:
    """Lets the kernel end this process when its parent ends; runs between fork and exec."""
    signal_with_parent(signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGTERM)
