"""Background job of this process: start, pauses during measurements, statistics and end.

DeepPool (section 5) runs background jobs on GPUs with stream priorities and pacing. On CPUs the
kernel's idle scheduling gives the job the processor time that training leaves idle. Pacing limits
the remaining cost of caches, memory bandwidth and preemption latency.
"""

import atexit
import contextlib
import dataclasses
import importlib
import logging
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tf_libra.background_jobs.idle_gaps import IdleGaps, SchedulingMode
from tf_libra.background_jobs.process import BackgroundProcess
from tf_libra.background_jobs.statistics import BackgroundRecord, BackgroundStats
from tf_libra.background_jobs.step_counter import COUNT_VARIABLE, StepCount
from tf_libra.background_jobs.throttle import Throttle
from tf_libra.coordination.launcher_environment import launched_rank
from tf_libra.internal import formatting, log_utils
from tf_libra.internal.process_state import STATE

COMMAND_VARIABLE = "TF_LIBRA_BACKGROUND"
MAX_SLOWDOWN_VARIABLE = "TF_LIBRA_BACKGROUND_MAX_SLOWDOWN"
# Environment variable with the rank whose process runs the background job.
RANK_VARIABLE = "TF_LIBRA_BACKGROUND_RANK"
MAX_SLOWDOWN = 0.05
# Seconds between two reports of statistics.
_NEWS_SECONDS = 2.0
# Environment variables that would make the background process a worker of the training job.
_JOB_VARIABLES = re.compile(
    r"(HOROVOD|KERAS_DISTRIBUTION|MASTER|OMPI|PMI|PMIX|SLURM|TF_LIBRA|TORCHELASTIC)_.*"
    r"|TF_CONFIG|(LOCAL_)?(RANK|WORLD_SIZE)"
)


class Background:
    """Background job that is paused while a training function of this process measures.

    Attributes:
        throttle: measured cost and allowed run time of the job.
    """

    def __init__(self, command: Sequence[str], max_slowdown: float, log: logging.Logger) -> None:
        """Prepare the job, which starts once a training function has a settled plan.

        Args:
            command: program and arguments.
            max_slowdown: see `Throttle`.
            log: logger of the job's messages.

        Raises:
            ValueError: the command is empty, or the limit is out of its range.
        """
        if not command:
            raise ValueError("background must be a command, got an empty one")
        check_program("background", command)
        self.throttle = Throttle(max_slowdown)
        self._mode = SchedulingMode(self.throttle)
        self._gaps = IdleGaps()
        self._uses_gaps = False  # in the current step
        self._command = tuple(command)
        self._log = log
        self._process: BackgroundProcess | None = None
        self._count: StepCount | None = None
        self._began = self._reported = 0.0
        self._has_reported_end = False
        self._is_over = False

    @property
    def is_over(self) -> bool:
        """True if the job has ended."""
        return self._is_over

    @property
    def runs(self) -> bool:
        """True if the process runs: started, not paused and not over."""
        process = self._process
        return process is not None and process.status is None and not process.is_paused

    @contextlib.contextmanager
    def around_step(self, is_settled: Callable[[], bool]) -> Iterator[None]:
        """See `StepHook`: the job may overlap the step unless the training function measures."""
        settled = is_settled()
        runs = settled and self.throttle.runs
        self._uses_gaps = runs and self._mode.in_gaps
        if self._uses_gaps and self._process is None:
            self._let_run(True)  # starts the process before the first gap
        self._let_run(runs and not self._uses_gaps)
        start = time.perf_counter()
        yield
        seconds = time.perf_counter() - start
        self._uses_gaps = False
        if settled:
            self.throttle.record(seconds, is_steady=is_settled())
            self._gaps.record_step(seconds)
            if self.throttle.is_planned:
                self._mode.planned(self._gaps.share)
        self._log_end()

    @contextlib.contextmanager
    def around_wait(self, what: str) -> Iterator[None]:
        """See `StepHook`: a job limited to gaps may run during the wait."""
        uses = self._uses_gaps and self._gaps.is_long(what)
        start = time.perf_counter()
        if uses:
            self._let_run(True)
        try:
            yield
        finally:
            if uses:
                self._let_run(False)
        self._gaps.record(what, time.perf_counter() - start)

    def _let_run(self, runs: bool) -> None:
        if self._is_over:
            return
        if self._process is None:
            if runs:
                self._began = time.monotonic()
                self._count = StepCount()
                self._process = BackgroundProcess(self._command, _environment(self._count))
                atexit.register(self.end)
        elif runs:
            self._process.resume()
        else:
            self._process.pause()

    def _log_end(self) -> None:
        """Log the end of a job that has ended by itself."""
        if self._is_over or self._process is None or self._process.status is None:
            return
        status = self._process.status
        self.end()
        how = "has ended" if status == 0 else f"has failed with status {status}"
        level = logging.INFO if status == 0 else logging.WARNING
        self._log.log(level, "background: %s %s; training goes on", self._name, how)

    @property
    def _name(self) -> str:
        return repr(shlex.join(self._command))

    def end(self) -> None:
        """End the job and log its run time."""
        if self._is_over:
            return
        self._is_over = True
        if self._process is not None:
            self._process.end()
            if self._count is not None:
                self._count.end()
            self._log.info("background: %s", self.describe())

    def news(self) -> BackgroundStats | None:
        """Return statistics at intervals and once the job is over; None in between."""
        if self._process is None or self._has_reported_end:
            return None
        now = time.monotonic()
        if not self._is_over and now - self._reported < _NEWS_SECONDS:
            return None
        self._reported, self._has_reported_end = now, self._is_over
        return BackgroundStats(
            step=self.throttle.num_steps,
            command=shlex.join(self._command),
            max_slowdown=self.throttle.max_slowdown,
            slowdown=self.throttle.slowdown,
            share_of_steps=self.throttle.share_of_steps,
            num_pauses=self._process.num_pauses,
            seconds=now - self._began,
            num_steps=None if self._count is None else self._count.read(),
        )

    def next_record(self) -> Callable[[str, int], BackgroundRecord] | None:
        """See `StepHook`: statistics at intervals and once the job is over."""
        stats = self.news()
        if stats is None:
            return None
        fields = dataclasses.asdict(stats)
        return lambda function, rank: BackgroundRecord(function=function, rank=rank, **fields)

    def explain(self) -> str:
        """See `StepHook`."""
        return f"background: {self.describe()}"

    def describe(self) -> str:
        """Describe the run time and cost in one line."""
        share = formatting.percent(self.throttle.share_of_steps)
        where = "in the gaps of" if self._mode.in_gaps else "during"
        text = f"{self._name} ran {where} {share} of the settled steps"
        made = None if self._count is None else self._count.read()
        if made is not None:
            text += f" and made {made} of its own"
        if self.throttle.slowdown is None:
            return text
        return (
            f"{text}; a step that overlapped it took {formatting.change(self.throttle.slowdown)}"
            f" (limit {formatting.percent(self.throttle.max_slowdown)} in the mean)"
        )


def _environment(count: StepCount) -> dict[str, str]:
    """Return the environment of the job: this process's, without variables of the training job."""
    found = {
        name: value for name, value in os.environ.items() if not _JOB_VARIABLES.fullmatch(name)
    }
    path = [entry or os.getcwd() for entry in sys.path]
    return found | {
        "PATH": _path(),
        "PYTHONPATH": os.pathsep.join(path),
        RANK_VARIABLE: str(launched_rank()),
        COUNT_VARIABLE: str(count.path),
    }


def _path() -> str:
    """Return the search path of programs with Python's folder last, the same as `tf-libra run`."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])


class BackgroundManager:
    """Holder of this process's background job, if any."""

    def __init__(self, background: Background | None) -> None:
        """Hold the job that the launcher has requested, or none."""
        self.background = background


@STATE.value()
def current_manager() -> BackgroundManager:
    """Return the manager that all training functions of this process share.

    Raises:
        ValueError: the environment describes no valid background job.
    """
    return BackgroundManager(from_environment(os.environ))


def from_environment(environment: Mapping[str, str]) -> Background | None:
    """Return the job that `tf-libra run --background` has requested; None without one.

    Raises:
        ValueError: a variable has an invalid value.
    """
    text = environment.get(COMMAND_VARIABLE)
    if text is None:
        return None
    log = log_utils.logger(launched_rank(environment))
    limit = environment.get(MAX_SLOWDOWN_VARIABLE, str(MAX_SLOWDOWN))
    return Background(parse_command(COMMAND_VARIABLE, text), parse_limit(limit), log)


def parse_command(name: str, text: str) -> list[str]:
    """Split a command line into program and arguments; raise `ValueError` if it is invalid."""
    try:
        command = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"{name} must be a command line, got {text!r}: {error}") from None
    if not command:
        raise ValueError(f"{name} must be a command line, got {text!r}")
    check_program(name, command)
    return command


def check_program(name: str, command: Sequence[str]) -> None:
    """Raise `ValueError` if this host lacks the program; `name` is the option in the message."""
    if shutil.which(command[0], path=_path()) is None:
        raise ValueError(
            f"{name} must be a command line of a program that can be run here, got"
            f" {shlex.join(command)!r}: there is no program {command[0]!r}"
        )


def parse_limit(text: str) -> float:
    """Parse a limit; raise `ValueError` if it is invalid."""
    try:
        return Throttle(float(text)).max_slowdown
    except ValueError:
        raise ValueError(f"max_slowdown must be a share above 0, got {text!r}") from None


def background(
    step: str | Sequence[str] | Callable[[], Any], max_slowdown: float = MAX_SLOWDOWN
) -> Background:
    """Run a low-priority job concurrently with the decorated training functions of this process.

    The job runs in its own process under the kernel's idle scheduling and belongs to this rank. It
    starts once a training function has a settled plan, and ends with this process. Measurements and
    the limit pause the job, which keeps its state.

    Args:
        step: a command line, a command, or a function without arguments of an importable module,
            which is called repeatedly until it returns False.
        max_slowdown: limit on the mean slowdown of training steps, as a share.

    Raises:
        ValueError: `step` or the limit is invalid, or the process has a background job already.
    """
    process = current_manager()
    if process.background is not None and not process.background.is_over:
        raise ValueError("background: this process has a background job already")
    if isinstance(step, str):
        command = parse_command("step", step)
    elif callable(step):
        command = [
            sys.executable,
            "-m",
            "tf_libra.background_jobs.step_counter",
            _import_path(step),
        ]
    else:
        command = [str(part) for part in step]
    log = log_utils.logger(launched_rank())
    process.background = Background(command, max_slowdown, log)
    return process.background


def _import_path(step: Callable[[], Any]) -> str:
    module, name = getattr(step, "__module__", None), getattr(step, "__qualname__", None)
    found = None
    if module not in (None, "__main__") and name is not None:
        found = getattr(importlib.import_module(module), name, None)
    if found is not step:
        raise ValueError(
            f"step must be a function of a module that can be imported, got {step!r}: the"
            " background runs in a process of its own, so put it into a file of its own"
        )
    return f"{module}:{name}"
