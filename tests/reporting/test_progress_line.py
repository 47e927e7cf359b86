"""Progress and log output during training, on terminals and other streams."""

import io
import logging
import os
import pty
import re
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TextIO

import pytest

import tf_libra
from tests.worker_processes import Job
from tf_libra.autotune import Phase
from tf_libra.internal import log_utils
from tf_libra.reporting import progress_line
from tf_libra.reporting.run_reporter import RunReporter

CLEAR = "\r\x1b[2K"


class Terminal:
    """Pseudo-terminal: reads the text written to `stream`."""

    def __init__(self) -> None:
        self._reading, writing = pty.openpty()
        self.stream: TextIO = os.fdopen(writing, "w")
        self.text = ""

    def read_until(self, pattern: str) -> str:
        """Reads until the pattern is in the text since the last call."""
        start, until = len(self.text), time.monotonic() + 120
        while not re.search(pattern, self.text[start:]):
            assert time.monotonic() < until, f"{pattern!r} is not in {self.text[start:]!r}"
            if select.select([self._reading], [], [], 1.0)[0]:
                self.text += os.read(self._reading, 65536).decode()
        return self.text[start:]

    def close(self) -> None:
        self.stream.close()
        os.close(self._reading)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    opened = Terminal()
    yield opened
    opened.close()


@pytest.fixture
def log(request: pytest.FixtureRequest) -> Iterator[logging.Logger]:
    logger = logging.getLogger(f"test of {request.node.name}")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    yield logger
    logger.handlers.clear()


def test_terminal_shows_activities_longer_than_a_second(
    terminal: Terminal, log: logging.Logger
) -> None:
    shown = progress_line.ProgressLine(log, terminal.stream)
    shown.show("measure: step 3 of at most 100")
    first = terminal.read_until("of at most 100, [0-9]+ s")
    seconds = [int(text) for text in re.findall(r"100, ([0-9]+) s", first)]
    assert seconds
    assert min(seconds) >= 1
    shown.show("measure: step 4 of at most 100", restart=False)
    terminal.read_until("step 4 of at most 100")
    shown.end()
    terminal.stream.write("the end\n")
    terminal.stream.flush()
    assert terminal.read_until("the end\r\n").endswith(f"{CLEAR}the end\r\n")


def test_log_messages_have_their_own_lines(terminal: Terminal, log: logging.Logger) -> None:
    log.addHandler(logging.StreamHandler(terminal.stream))
    shown = progress_line.ProgressLine(log, terminal.stream)
    shown.show("fit")
    terminal.read_until("fit, [0-9]+ s")
    log.info("a message")
    before, _, _ = terminal.read_until("a message\r\n").partition("a message")
    assert before.endswith(CLEAR)
    shown.end()
    log.info("last")
    assert "tf_libra: fit" not in terminal.read_until("last").rpartition(CLEAR)[2]


def test_no_thread_is_left_running(terminal: Terminal, log: logging.Logger) -> None:
    before = threading.active_count()
    shown = progress_line.ProgressLine(log, terminal.stream)
    for _ in range(3):
        shown.show("plan")
        assert threading.active_count() == before + 1
        shown.end()
        shown.end()
        assert threading.active_count() == before
    assert log.filters == []


@pytest.mark.parametrize("level", [logging.INFO, logging.WARNING])
def test_line_needs_a_terminal_and_level_info(
    terminal: Terminal, log: logging.Logger, level: int
) -> None:
    log.setLevel(level)
    stream = terminal.stream if level > logging.INFO else io.StringIO()
    before = threading.active_count()
    shown = progress_line.ProgressLine(log, stream)
    shown.show("measure")
    assert threading.active_count() == before
    shown.end()
    if isinstance(stream, io.StringIO):
        assert stream.getvalue() == ""


@pytest.mark.parametrize("wanted", [True, False])
def test_phases_are_shown_unless_progress_is_off(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, wanted: bool
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    reporter = RunReporter(tf_libra.optimize(progress=wanted).keywords["options"])
    before = set(threading.enumerate())
    reporter.on_activity(Phase.TRACE)
    if wanted:
        terminal.read_until("tf_libra: trace, [0-9]+ s")
    reporter.on_step_begin(Phase.MEASURE, 1)
    if wanted:
        terminal.read_until("tf_libra: measure: step 1 of at most [0-9]+, [0-9]+ s")
    else:
        assert set(threading.enumerate()) <= before  # no thread that would show anything
    reporter.close()


@pytest.mark.usefixtures("plain_logging")
@pytest.mark.parametrize(
    ("wanted", "rank", "level"),
    [
        (None, 0, logging.INFO),
        (None, 1, logging.WARNING),
        ("debug", 0, logging.DEBUG),
        ("debug", 1, logging.WARNING),
        ("ERROR", 0, logging.ERROR),
        ("ERROR", 1, logging.ERROR),
        ("loud", 0, logging.INFO),
    ],
)
def test_level(monkeypatch: pytest.MonkeyPatch, wanted: str | None, rank: int, level: int) -> None:
    if wanted is None:
        monkeypatch.delenv(log_utils.LEVEL_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(log_utils.LEVEL_VARIABLE, wanted)
    assert log_utils.logger(rank).level == level


def test_unknown_level_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = logging.getLogger("levels")
    monkeypatch.setenv(log_utils.LEVEL_VARIABLE, "info")
    log_utils.warn_of_unknown_level(log)
    assert caplog.text == ""
    monkeypatch.setenv(log_utils.LEVEL_VARIABLE, "loud\n")
    log_utils.warn_of_unknown_level(log)
    assert "TF_LIBRA_LOG_LEVEL must be debug, info, warning, error or critical" in caplog.text
    assert "'loud\\n'" in caplog.text


@pytest.fixture(scope="module")
def talking(run_job: Callable[..., Job]) -> Job:
    """Runs the job of `jobs/terminal.py`, whose rank 0 has a terminal."""
    return run_job("terminal.py", 2)


def terminal_text(job: Job) -> str:
    return (job.folder / "terminal.txt").read_bytes().decode()  # with its carriage returns


def lines(job: Job) -> list[str]:
    """Returns the lines that stay on the terminal."""
    return [line.rstrip("\r").rpartition(CLEAR)[2] for line in terminal_text(job).split("\n")]


def test_terminal_shows_progress_and_all_messages(talking: Job) -> None:
    # The job stays in that phase until the progress line is there.
    assert re.search(r"tf_libra: measure[^\r\n]*, \d+ s", terminal_text(talking))
    assert "tf_libra: measure: from step 1 on" in lines(talking)
    assert not [line for line in lines(talking) if "of at most" in line]


def test_rank_0_logs_a_summary_line(talking: Job) -> None:
    [line] = [line for line in lines(talking) if "under a plan of" in line]
    against = "against one all-reduce after backward"
    ratio = r"[^;]+ % \([^;]+ % to [^;]+ %\)"
    assert re.fullmatch(
        r"tf_libra: HandWritten.step: \d+ steps, \d+ of them under a plan of [a-z-]+"
        r" \(\d+ groups?\), [\d.]+ (us|ms|s) each"
        # Measurements decide which plan it is; one all-reduce is not compared with itself.
        rf"(; (no significant difference {against}: {ratio}|{ratio} {against}) in \d+ .*rounds)?",
        line,
    )


def test_other_ranks_only_warn(talking: Job) -> None:
    for words in ("measure:", "under a plan of", "\x1b"):
        assert words not in talking.output(1)


def test_explanation_fits_into_100_columns(talking: Job) -> None:
    explained = (talking.folder / "explained.txt").read_text().splitlines()
    assert max(map(len, explained)) <= 100
    assert explained[0] == "phase: run"


@pytest.fixture
def plain_logging() -> Iterator[logging.Logger]:
    """Provides unconfigured logging, and restores the previous state."""
    log, root = logging.getLogger("tf_libra"), logging.getLogger()
    before, roots, handlers = log.level, root.level, list(log.handlers)
    log.setLevel(logging.NOTSET)
    root.setLevel(logging.WARNING)
    yield log
    log.setLevel(before)
    root.setLevel(roots)
    log.handlers[:] = handlers


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("level", [logging.DEBUG, logging.ERROR])
def test_level_of_the_user_stays(plain_logging: logging.Logger, level: int, rank: int) -> None:
    plain_logging.setLevel(level)
    assert log_utils.logger(rank).level == level
    assert log_utils.logger(1 - rank).level == level


def test_higher_root_level_stays(plain_logging: logging.Logger) -> None:
    logging.getLogger().setLevel(logging.ERROR)
    assert log_utils.logger(0).level == logging.ERROR
    assert log_utils.logger(1).level == logging.ERROR


def test_level_follows_the_rank_until_set_by_the_user(plain_logging: logging.Logger) -> None:
    assert log_utils.logger(1).level == logging.WARNING
    assert log_utils.logger(0).level == logging.INFO
    plain_logging.setLevel(logging.CRITICAL)
    assert log_utils.logger(0).level == logging.CRITICAL
