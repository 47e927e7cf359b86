"""Summary of how a job ended, from what its workers and Horovod's launcher have printed.

Horovod puts a worker's number before each of its lines (`[1]<stderr>:`, or `[0,1]<stderr>:` under
mpirun) and prints the exit status of those that failed. A worker's traceback ends in the error.
"""

import itertools
import re
import signal
from collections.abc import Iterator

_WORKER = re.compile(r"\[(?:\d+,)?(\d+)\]<(stdout|stderr)>:(.*)\Z", re.DOTALL)
_STATUS = re.compile(r"Process (\d+) exit with status code (\d+)\.")
_ENDING = "Terminating remaining workers after failure of Process"
_TRACEBACK = "Traceback (most recent call last):"
_ERROR = re.compile(r"\s*([A-Za-z_][\w.]*)(?:: (.*))?\Z")
# After which TensorFlow tells the rest in lines of its own.
_MORE_FOLLOWS = ("in user code:", "Graph execution error:")
_KERAS = "Exception encountered when calling"
# Of TensorFlow or absl: `I0000 00:00:1.2 7 port.cc:153] ...`, `2026-01-31 12:00:00.1: I tensor...`.
# Our own lines tell of errors by raising them.
_NO_ERROR = re.compile(
    r"[IW]\d{4} [\d:.]+ +\d+ \S+:\d+\] |[-\d]+ [\d:.]+: [IW] |WARNING: All log |tf_libra: "
)
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
# Between the tracebacks of two errors of which one has led to the other.
_CHAINED = ("The above exception was the direct cause", "During handling of the above exception")
# Errors of these modules may quote another rank's, or Python code that TensorFlow has called, with
# the traceback.
_QUOTING = ("tensorflow.", "horovod.", "tf_libra.")
# What a rank raises because of another: always, and if the message names a rank.
_CONSEQUENCES = ("HorovodInternalError", "LostRankError", "ElsewhereError")
_CONSEQUENCES_BY_NAME = ("AbortedError", "DeadlineExceededError", "UnavailableError")
_NAMES_A_RANK = re.compile(r"\brank\(?s?\)? \d")
# TensorFlow's, before the message of an error.
_NODE = re.compile(r"\{\{\w+ [^}]*\}\}\s*")
_KEPT_LINES = 500
# Exit status of Python after an uncaught error.
_UNCAUGHT = 1
_TERMINATED = 128 + signal.SIGTERM


class ExitSummary:
    """Summary of how a job ends, as far as known."""

    def __init__(self) -> None:
        """Starts before any line was printed."""
        self._last: dict[int, str] = {}  # by rank: the last line on stderr
        self._raised: dict[int, list[str]] = {}  # by rank: what followed its last "Traceback"
        self._order: dict[int, int] = {}  # by rank: how many lines there were before that
        self._num_lines = 0
        self._statuses: dict[int, int] = {}  # by rank, in the order in which they ended

    def read(self, line: str) -> bool:
        """Takes note of a line; returns whether it is to be shown."""
        text = line.rstrip("\r\n")
        self._num_lines += 1
        if found := _WORKER.search(text):
            rank, stream, said = int(found[1]), found[2], found[3]
            if stream == "stderr" and said == "Terminated":  # the shell's, of a worker it ended
                return False
            if stream == "stderr":
                self._read_stderr(rank, said)
            return True
        if found := _STATUS.fullmatch(text):
            self._statuses[int(found[1])] = int(found[2])
            self._order.setdefault(int(found[1]), self._num_lines)
            return False
        return not text.startswith(_ENDING)

    def _read_stderr(self, rank: int, said: str) -> None:
        if said.strip() and not _NO_ERROR.match(said):
            self._last[rank] = said.strip()
        if said == _TRACEBACK and not self._is_quoted(rank):
            self._raised[rank] = []
            self._order[rank] = self._num_lines
        elif rank in self._raised and len(self._raised[rank]) < _KEPT_LINES:
            self._raised[rank].append(said)

    def _is_quoted(self, rank: int) -> bool:
        """Return whether a traceback that begins now is a part of the message of an error."""
        before = [line for line in self._raised.get(rank, []) if line.strip()]
        if not before or before[-1].startswith(_CHAINED):
            return False
        error = next((line for line in before if not line[0].isspace()), "")
        return error.startswith(_QUOTING)

    def told(self) -> list[str]:
        """A line for each rank that failed, in the order in which they did.

        Those come first whose failure the others follow from.
        """
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
        if raised and (status == _UNCAUGHT or status > 128):  # else the script has caught it
            return raised
        if status in (0, _TERMINATED):  # by the launcher, because of another
            return ""
        if status > 128:
            number = status - 128
            names = {int(one): one.name for one in signal.Signals}
            why = ", as where memory runs out" if number == signal.SIGKILL else ""
            return f"ended by {names.get(number, f'signal {number}')}{why}"
        last = f": {self._last[rank]}" if rank in self._last else ""
        return f"exit status {status}{last}"


def _is_consequence(what: str) -> bool:
    kind, _, message = what.partition(": ")
    by_name = kind in _CONSEQUENCES_BY_NAME and _NAMES_A_RANK.search(message) is not None
    return kind in _CONSEQUENCES or by_name


def _error(lines: list[str]) -> str:
    """`Type: message` of what follows a "Traceback" line; empty where there is none."""
    after = iter(lines)
    for line in after:
        if line and not line[0].isspace():
            if not (found := _ERROR.fullmatch(line)):
                return ""
            kind, message = found[1].rpartition(".")[2], found[2] or ""
            if message.strip() in _MORE_FOLLOWS:
                kind, message = _told_further(kind, message, after)
            message = _NODE.sub("", message)
            return f"{kind}: {message}" if message else kind
    return ""


def _told_further(kind: str, message: str, lines: Iterator[str]) -> tuple[str, str]:
    """The error at the end of what TensorFlow says of where it came from."""
    rest = [line for line in lines if line.strip()]
    for before, line in itertools.pairwise(rest):
        if line.lstrip().startswith("[["):  # the nodes of a graph; before them stands the error
            return kind, before.strip()
    inner = [
        found
        for line in rest
        if line[0].isspace() and (found := _ERROR.fullmatch(line)) and found[2]
    ]
    if inner:
        kind, message = inner[-1][1].rpartition(".")[2], inner[-1][2].strip()
        if message.startswith(_KERAS):  # what went wrong stands below
            below = rest[rest.index(inner[-1].string) + 1 :]
            message = _COLOR.sub("", below[0]).strip() if below else message
        return kind, message
    return kind, message
