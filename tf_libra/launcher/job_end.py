"""Last lines of `tf-libra run`, and its exit status."""

import os
import signal
from collections.abc import Mapping, Sequence
from typing import TextIO

from tf_libra.launcher import TRACEBACK_VARIABLE
from tf_libra.launcher.exit_summary import ExitSummary

_SIGNALS = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP"}


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
