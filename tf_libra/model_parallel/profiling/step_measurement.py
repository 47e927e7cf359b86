"""Measured timelines of the first steps under a plan, which all ranks exchange afterwards."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tf_libra.coordination.control_plane import Control
from tf_libra.model_parallel.execution.step_executor import StepExecutor
from tf_libra.model_parallel.simulation.pipeline_gantt import Bar

# The first step instantiates functions and is not typical.
_STEPS = range(2, 5)


@dataclass(frozen=True)
class MeasuredLayers:
    """Measured timeline of one iteration.

    Attributes:
        bars: activities of every rank, in seconds since the common start.
        seconds: seconds until the last rank ended its step.
    """

    bars: tuple[Bar, ...]
    seconds: float


class Measuring:
    """Measurement of a few steps that run under a plan.

    Attributes:
        number: number of steps so far.
        typical: iteration of median length; None before all are measured.
    """

    def __init__(self, tell: Callable[[MeasuredLayers], None]) -> None:
        """Start before the first step.

        Args:
            tell: callback that receives the typical iteration once.
        """
        self.number = 0
        self._tell = tell
        self.typical: MeasuredLayers | None = None
        self._iterations: list[MeasuredLayers] = []

    def during(self, control: Control, execution: StepExecutor, run: Callable[[], Any]) -> Any:
        """Run a step together with the other ranks; measure one of the first steps.

        Raises:
            EngineError: a rank is gone.
        """
        self.number += 1
        if self.number not in _STEPS:
            return run()
        control.all_gather(None)  # a common start of all ranks
        start = time.perf_counter()
        result = run()
        seconds = time.perf_counter() - start
        mine: list[list[Any]] = [
            [span.kind, span.stage, span.microbatch, span.start_seconds, span.stop_seconds]
            for span in execution.task_spans
        ]
        if execution.reduction_span is not None:
            mine.append(["all_reduce", execution.stages[0], None, *execution.reduction_span])
        if execution.stages and not execution.layout.is_whole:
            mine.append(["update", execution.stages[0], None, *execution.update_span])
        everyone = control.all_gather({"seconds": seconds, "executed": mine})
        bars = [
            Bar(rank, *task)
            for rank, reported in enumerate(everyone)
            for task in reported["executed"]
        ]
        longest = max(reported["seconds"] for reported in everyone)
        self._iterations.append(MeasuredLayers(tuple(bars), longest))
        if self.number == _STEPS[-1]:
            in_order = sorted(self._iterations, key=lambda iteration: iteration.seconds)
            self.typical = in_order[len(in_order) // 2]
            self._tell(self.typical)
        return result
