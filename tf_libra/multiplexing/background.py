"""A background job beside the training functions of this process, on what they leave.

DeepPool (section 5) runs such jobs on GPUs, by stream priorities and pacing. On CPUs the kernel's
idle scheduling gives it the time that training leaves, and pacing limits what it costs all the
same: caches, memory, and the moment that it takes to be put aside.
"""

import atexit
import contextlib
import functools
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

from tf_libra import logs, units
from tf_libra.model.background import Got
from tf_libra.multiplexing.counting import COUNT_VARIABLE, StepCount
from tf_libra.multiplexing.gaps import Gaps, Manner
from tf_libra.multiplexing.pacing import Pacing
from tf_libra.multiplexing.process import BackgroundProcess

COMMAND_VARIABLE = "TF_LIBRA_BACKGROUND"
MAX_SLOWDOWN_VARIABLE = "TF_LIBRA_BACKGROUND_MAX_SLOWDOWN"
# Tells a background job beside which rank it runs.
RANK_VARIABLE = "TF_LIBRA_BACKGROUND_RANK"
MAX_SLOWDOWN = 0.05
# Between two times that it is told what it has got.
_NEWS_SECONDS = 2.0
# What would make it a worker of the job.
_OF_THE_JOB = re.compile(r"(HOROVOD|OMPI|PMI|PMIX|SLURM|TF_LIBRA)_.*|TF_CONFIG")


class Background:
    """A job that runs while training functions of this process have nothing to measure.

    Attributes:
        pacing: how much it runs, and what it costs.
    """

    def __init__(self, command: Sequence[str], max_slowdown: float, log: logging.Logger) -> None:
        """Starts nothing before a training function has settled on its plan.

        Args:
            command: program and arguments.
            max_slowdown: see `Pacing`.
            log: where it speaks.

        Raises:
            ValueError: there is no command, or the limit is out of its range.
        """
        if not command:
            raise ValueError("background must be a command, got an empty one")
        check_program("background", command)
        self.pacing = Pacing(max_slowdown)
        self._manner = Manner(self.pacing)
        self._gaps = Gaps()
        self._uses_gaps = False  # of the step under way
        self._command = tuple(command)
        self._log = log
        self._process: BackgroundProcess | None = None
        self._count: StepCount | None = None
        self._began = self._told = 0.0
        self._has_told_end = False
        self._is_over = False

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or was ended."""
        return self._is_over

    @property
    def runs(self) -> bool:
        """Whether its process goes on at present: it has begun, and is neither paused nor over."""
        process = self._process
        return process is not None and process.status is None and not process.is_paused

    @contextlib.contextmanager
    def beside(self, is_settled: Callable[[], bool]) -> Iterator[None]:
        """A call of a training function, beside which the job may run.

        Args:
            is_settled: whether the function measures nothing, before and after the call.
        """
        settled = is_settled()
        runs = settled and self.pacing.runs
        self._uses_gaps = runs and self._manner.in_gaps
        if self._uses_gaps and self._process is None:
            self._let_run(True)  # so that it is there when there is a gap
        self._let_run(runs and not self._uses_gaps)
        start = time.perf_counter()
        yield
        seconds = time.perf_counter() - start
        self._uses_gaps = False
        if settled:
            self.pacing.took(seconds, usual=is_settled())
            self._gaps.step_took(seconds)
            if self.pacing.is_planned:
                self._manner.planned(self._gaps.share)
        self._look()

    @contextlib.contextmanager
    def gap(self, what: str) -> Iterator[None]:
        """A wait for another rank within a call, in which the job may run where it is held to gaps.

        Args:
            what: is waited for; the same in every step.
        """
        uses = self._uses_gaps and self._gaps.is_long(what)
        start = time.perf_counter()
        if uses:
            self._let_run(True)
        try:
            yield
        finally:
            if uses:
                self._let_run(False)
        self._gaps.took(what, time.perf_counter() - start)

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

    def _look(self) -> None:
        """Says so where the job has ended by itself."""
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
        """Ends the job, and says how much it ran."""
        if self._is_over:
            return
        self._is_over = True
        if self._process is not None:
            self._process.end()
            if self._count is not None:
                self._count.end()
            self._log.info("background: %s", self.describe())

    def news(self) -> Got | None:
        """What it has got so far, now and then, and once it is over; None if that is not new."""
        if self._process is None or self._has_told_end:
            return None
        now = time.monotonic()
        if not self._is_over and now - self._told < _NEWS_SECONDS:
            return None
        self._told, self._has_told_end = now, self._is_over
        return Got(
            step=self.pacing.num_steps,
            command=shlex.join(self._command),
            max_slowdown=self.pacing.max_slowdown,
            slowdown=self.pacing.slowdown,
            share_of_steps=self.pacing.share_of_steps,
            num_pauses=self._process.num_pauses,
            seconds=now - self._began,
            num_steps=None if self._count is None else self._count.read(),
        )

    def describe(self) -> str:
        """How much it ran, and what it cost, in one line."""
        share = units.percent(self.pacing.share_of_steps)
        where = "in the gaps of" if self._manner.in_gaps else "beside"
        told = f"{self._name} ran {where} {share} of the settled steps"
        made = None if self._count is None else self._count.read()
        if made is not None:
            told += f" and made {made} of its own"
        if self.pacing.slowdown is None:
            return told
        return (
            f"{told}; a step beside it took {units.change(self.pacing.slowdown)}"
            f" (limit {units.percent(self.pacing.max_slowdown)} in the mean)"
        )


def _environment(count: StepCount) -> dict[str, str]:
    """As ours, but of nobody's job, and with our modules to be found."""
    found = {name: value for name, value in os.environ.items() if not _OF_THE_JOB.fullmatch(name)}
    path = [one or os.getcwd() for one in sys.path]
    return found | {
        "PATH": _path(),
        "PYTHONPATH": os.pathsep.join(path),
        RANK_VARIABLE: os.environ.get("HOROVOD_RANK", "0"),
        COUNT_VARIABLE: str(count.path),
    }


def _path() -> str:
    """Where programs are looked for: at last beside Python, as `tf-libra run` lets workers."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])


class Beside:
    """What runs beside the training functions of this process, if anything."""

    def __init__(self, given: Background | None) -> None:
        """With what the launcher has given."""
        self.background = given


def waiting(what: str) -> contextlib.AbstractContextManager[None]:
    """A wait for another rank, which what runs beside this process may use."""
    beside = of_this_process().background
    return contextlib.nullcontext() if beside is None else beside.gap(what)


@functools.cache
def of_this_process() -> Beside:
    """What every training function uses.

    Raises:
        ValueError: what the environment says is no background job.
    """
    return Beside(from_environment(os.environ))


def from_environment(environment: Mapping[str, str]) -> Background | None:
    """What `tf-libra run --background` asks for; None if nothing.

    Raises:
        ValueError: it cannot be right; named.
    """
    text = environment.get(COMMAND_VARIABLE)
    if text is None:
        return None
    log = logs.of_launched(environment)
    limit = environment.get(MAX_SLOWDOWN_VARIABLE, str(MAX_SLOWDOWN))
    return Background(command_of(COMMAND_VARIABLE, text), limit_of(limit), log)


def command_of(name: str, text: str) -> list[str]:
    """A command line as a program with its arguments; `ValueError` names what is wrong with it."""
    try:
        command = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"{name} must be a command line, got {text!r}: {error}") from None
    if not command:
        raise ValueError(f"{name} must be a command line, got {text!r}")
    check_program(name, command)
    return command


def check_program(name: str, command: Sequence[str]) -> None:
    """Raises `ValueError` where this host has no such program; `name` says whose command it is."""
    if shutil.which(command[0], path=_path()) is None:
        raise ValueError(
            f"{name} must be a command line of a program that can be run here, got"
            f" {shlex.join(command)!r}: there is no program {command[0]!r}"
        )


def limit_of(text: str) -> float:
    """A limit as text; `ValueError` where it is none."""
    try:
        return Pacing(float(text)).max_slowdown
    except ValueError:
        raise ValueError(f"max_slowdown must be a share above 0, got {text!r}") from None


def background(
    step: str | Sequence[str] | Callable[[], Any], max_slowdown: float = MAX_SLOWDOWN
) -> Background:
    """Runs a job of low priority beside the decorated training functions of this process.

    It runs in a process of its own, under the kernel's idle scheduling, as soon as a training
    function has settled on its plan; it is paused while something is measured, and as much as the
    limit calls for. It loses nothing when it is paused, and ends with this process. It belongs to
    this rank alone.

    Args:
        step: a command line, a command, or a function without arguments of a module that can be
            imported, which is called again and again until it returns False.
        max_slowdown: by how much steps may be longer for it, as a share, in the mean.

    Raises:
        ValueError: `step` or the limit cannot be right, or there is one already.
    """
    beside = of_this_process()
    if beside.background is not None and not beside.background.is_over:
        raise ValueError("background: there is one beside this process already")
    if isinstance(step, str):
        command = command_of("step", step)
    elif callable(step):
        command = [sys.executable, "-m", "tf_libra.multiplexing.repeat", _place_of(step)]
    else:
        command = [str(part) for part in step]
    log = logs.of_launched()
    beside.background = Background(command, max_slowdown, log)
    return beside.background


def _place_of(step: Callable[[], Any]) -> str:
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
