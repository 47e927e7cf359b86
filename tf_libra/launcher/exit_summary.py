"""Summary of how a job ended, from its workers' output and exit statuses; the last lines of it.

Horovod's launcher prefixes each line with the worker's number (`[1]<stderr>:`, or `[0,1]<stderr>:`
under mpirun) and prints the exit status of failed workers. A worker's traceback ends in the error.
"""

import itertools
import os
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from typing import TextIO

from tf_libra.launcher import TRACEBACK_VARIABLE

_WORKER = re.compile(r"\[(?:\d+,)?(\d+)\]<(stdout|stderr)>:(.*)\Z", re.DOTALL)
_STATUS = re.compile(r"Process (\d+) exit with status code (\d+)\.")
_ENDING = "Terminating remaining workers after failure of Process"
_TRACEBACK = "Traceback (most recent call last):"
_ERROR = re.compile(r"\s*([A-Za-z_][\w.]*)(?:: (.*))?\Z")
# Messages of TensorFlow that continue in the following lines.
_MORE_FOLLOWS = ("in user code:", "Graph execution error:")
_KERAS = "Exception encountered when calling"
# Log lines of TensorFlow or absl: `I0000 00:00:1.2 7 port.cc:153] ...`,
# `2026-01-31 12:00:00.1: I tensor...`.
# TF-Libra logs no error that it does not raise.
_NO_ERROR = re.compile(
    r"[IW]\d{4} [\d:.]+ +\d+ \S+:\d+\] |[-\d]+ [\d:.]+: [IW] |WARNING: All log |tf_libra: "
)
# Messages at level INFO that TensorFlow's C++ prints while it starts, even if TF_CPP_MIN_LOG_LEVEL
# hides that level.
_STARTUP = re.compile(
    r"I\d{4} [\d:.]+ +\d+ \S+\.cc:\d+\] |[-\d]+ [\d:.]+: I \S+\.cc:\d+\] "
    r"|WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR"
    r"|To enable the following instructions: .*, rebuild TensorFlow"
)
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
# Lines between the tracebacks of chained errors.
_CHAINED = ("The above exception was the direct cause", "During handling of the above exception")
# Errors of these modules may quote a traceback: of another rank, or of Python code that TensorFlow
# has called.
_QUOTING = ("tensorflow.", "horovod.", "tf_libra.")
_SIGNALS = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP"}
# Errors that follow from another rank's: always, or if the message names a rank.
_CONSEQUENCES = ("HorovodInternalError", "LostRankError", "ElsewhereError")
_CONSEQUENCES_BY_NAME = ("AbortedError", "DeadlineExceededError", "UnavailableError")
_NAMES_A_RANK = re.compile(r"\brank\(?s?\)? \d")
# Prefix of TensorFlow before the message of an error.
_NODE = re.compile(r"\{\{\w+ [^}]*\}\}\s*")
_NUM_STORED_LINES = 500
# Exit status of Python after an uncaught error.
_UNCAUGHT = 1
_TERMINATED = 128 + signal.SIGTERM


class ExitSummary:
    """Summary of how a job ended, from the lines so far."""

    def __init__(self, hides_startup: bool = False) -> None:
        """Starts before any line was printed.

        Args:
            hides_startup: whether to hide TensorFlow's messages at level INFO.
        """
        self._hides_startup = hides_startup
        self._last: dict[int, str] = {}  # by rank: the last line on stderr that is not logged
        self._logging: set[int] = set()  # ranks whose last line is logged; it may go on, indented
        self._raised: dict[int, list[str]] = {}  # by rank: lines after its last "Traceback"
        self._order: dict[int, int] = {}  # by rank: number of lines before that
        self._num_lines = 0
        self._statuses: dict[int, int] = {}  # by rank, in the order in which they ended

    @property
    def has_traceback(self) -> bool:
        """True if a worker has printed a traceback of its own."""
        return bool(self._raised)

    def read(self, line: str) -> bool:
        """Reads a line of Horovod's launcher; returns whether to show it."""
        text = line.rstrip("\r\n")
        if found := _WORKER.search(text):
            return self.read_worker_line(int(found[1]), found[2], found[3])
        if found := _STATUS.fullmatch(text):
            self.add_status(int(found[1]), int(found[2]))
            return False
        return not text.startswith(_ENDING)

    def read_worker_line(self, rank: int, stream: str, line: str) -> bool:
        """Reads a line that a worker has printed; returns whether to show it.

        Args:
            rank: rank of the worker.
            stream: "stdout" or "stderr".
            line: the line.
        """
        self._num_lines += 1
        text = line.rstrip("\r\n")
        if stream == "stdout":
            return True
        if text == "Terminated":  # printed by the shell
            return False
        self._read_stderr(rank, text)
        return not (self._hides_startup and _STARTUP.match(text))

    def add_status(self, rank: int, status: int) -> None:
        """Notes that a worker has failed.

        Args:
            rank: rank of the worker.
            status: exit status as in a shell: 128 + N after signal N.
        """
        self._num_lines += 1
        self._statuses[rank] = status
        self._order.setdefault(rank, self._num_lines)

    def _read_stderr(self, rank: int, line_text: str) -> None:
        goes_on = rank in self._logging and line_text.startswith(" ")
        if _NO_ERROR.match(line_text) or goes_on:
            self._logging.add(rank)
        elif line_text.strip():
            self._logging.discard(rank)
            self._last[rank] = line_text.strip()
        if line_text == _TRACEBACK and not self._is_quoted(rank):
            self._raised[rank] = []
            self._order[rank] = self._num_lines
        elif rank in self._raised and len(self._raised[rank]) < _NUM_STORED_LINES:
            self._raised[rank].append(line_text)

    def _is_quoted(self, rank: int) -> bool:
        """Returns whether a traceback that begins now is part of an error message."""
        before = [line for line in self._raised.get(rank, []) if line.strip()]
        if not before or before[-1].startswith(_CHAINED):
            return False
        error = next((line for line in before if not line[0].isspace()), "")
        return error.startswith(_QUOTING)

    def lines(self) -> list[str]:
        """Returns a line for each failed rank: causes first, in the order of failure."""
        failed = {rank: self._failure(rank) for rank in self._statuses or self._raised}
        failed = {rank: what for rank, what in failed.items() if what}
        causes = {rank: what for rank, what in failed.items() if not _is_consequence(what)}
        causes = causes or failed
        by_text: dict[str, list[int]] = {}
        for rank in sorted(causes, key=lambda rank: self._order.get(rank, 0)):
            by_text.setdefault(causes[rank], []).append(rank)
        lines: list[str] = []
        for what, ranks in by_text.items():
            first, *same = sorted(ranks)
            lines.append(f"rank {first}: {what}")
            lines += [f"rank {rank}: the same as rank {first}" for rank in same]
        others = sorted(failed.keys() - causes.keys())
        if others:
            named = ", ".join(map(str, others))
            lines.append(f"rank{'s' if len(others) > 1 else ''} {named}: ended because of that")
        return lines

    def _failure(self, rank: int) -> str:
        status = self._statuses.get(rank, _UNCAUGHT)
        raised = _error(self._raised.get(rank, []))
        if raised and (status == _UNCAUGHT or status > 128):  # otherwise the script has caught it
            return raised
        if status in (0, _TERMINATED):  # ended by the launcher after another rank's failure
            return ""
        if status > 128:
            number = status - 128
            names = {int(known): known.name for known in signal.Signals}
            why = ", as when memory runs out" if number == signal.SIGKILL else ""
            return f"ended by {names.get(number, f'signal {number}')}{why}"
        last = f": {self._last[rank]}" if rank in self._last else ""
        return f"exit status {status}{last}"


def _is_consequence(what: str) -> bool:
    kind, _, message = what.partition(": ")
    by_name = kind in _CONSEQUENCES_BY_NAME and _NAMES_A_RANK.search(message) is not None
    return kind in _CONSEQUENCES or by_name


def _error(lines: list[str]) -> str:
    """Returns `Type: message` of the error after a "Traceback" line; empty if there is none."""
    after = iter(lines)
    for line in after:
        if line and not line[0].isspace():
            if not (found := _ERROR.fullmatch(line)):
                return ""
            kind, message = found[1].rpartition(".")[2], found[2] or ""
            if message.strip() in _MORE_FOLLOWS:
                kind, message = _continued(kind, message, after)
            message = _NODE.sub("", message)
            return f"{kind}: {message}" if message else kind
    return ""


def _continued(kind: str, message: str, lines: Iterator[str]) -> tuple[str, str]:
    """Returns the error at the end of TensorFlow's description of its origin."""
    rest = [line for line in lines if line.strip()]
    for before, line in itertools.pairwise(rest):
        if line.lstrip().startswith("[["):  # nodes of the graph follow the error
            return kind, before.strip()
    inner = [
        found
        for line in rest
        if line[0].isspace() and (found := _ERROR.fullmatch(line)) and found[2]
    ]
    if inner:
        kind, message = inner[-1][1].rpartition(".")[2], inner[-1][2].strip()
        if message.startswith(_KERAS):  # the cause stands below
            below = rest[rest.index(inner[-1].string) + 1 :]
            message = _COLOR.sub("", below[0]).strip() if below else message
        return kind, message
    return kind, message


def new_summary(environment: Mapping[str, str] = os.environ) -> ExitSummary:
    """Returns the summary of a job that begins now.

    Args:
        environment: environment of the workers.
    """
    level = environment.get("TF_CPP_MIN_LOG_LEVEL", "")
    return ExitSummary(hides_startup=level.isdecimal() and int(level) > 0)


def print_end(
    summary: ExitSummary, signals: Sequence[int], failure: str | None, stream: TextIO
) -> int:
    """Prints how the job ended; returns the exit status.

    Args:
        summary: what the workers have printed.
        signals: signals that the launcher received.
        failure: description of the failure, which is printed if no worker has failed; None if the
            job succeeded.
        stream: receives the lines.
    """
    for number, name in _SIGNALS.items():
        if number in signals:
            print(f"tf-libra run: ended by {name}", file=stream)
            return 128 + number
    if failure is None:
        return 0
    lines = summary.lines()
    if not lines:  # an error of the launcher, such as a host that cannot be reached
        print(f"tf-libra run: {failure}", file=stream)
        return 1
    print("\ntf-libra run: the job has ended with an error", *lines, sep="\n", file=stream)
    if summary.has_traceback:
        print(
            "Tracebacks stand above, without the frames of libraries; set"
            f" {TRACEBACK_VARIABLE}=full to show them.",
            file=stream,
        )
    print("More by symptom: docs/troubleshooting.md.", file=stream)
    return 1
