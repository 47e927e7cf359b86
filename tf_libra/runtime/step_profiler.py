"""Profiles of single steps on rank 0, and the choice of the steps that are profiled."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tf_libra.autotune import TrialResult
from tf_libra.backends.backend import Backend, TracedStep
from tf_libra.profiling.executed_graph import (
    GradientSources,
    GraphCapture,
    PlacedAllReduce,
    gradient_sources,
    placed_all_reduces,
)
from tf_libra.profiling.gradient_timing import select_producers, step_production
from tf_libra.profiling.profiler_session import TraceSession, read_events
from tf_libra.profiling.weight_uses import first_uses
from tf_libra.specs.plan import Plan
from tf_libra.specs.telemetry import AllReduceRecord, gathers_among, records_of_step

# Steps under a plan that are traced in any case, after the first.
CHECKED_STEPS = 5
# Share of a run's time that tracing later steps may cost.
CHECK_SHARE = 0.01
# A long run leaves a bounded file: the next step is traced only after the time since the plan's
# activation has grown by this share.
_CHECK_GROWTH = 0.1
# Engine and Python read the clock one after the other, at the beginning of a step.
_CLOCKS_APART_NS = 10_000_000


class ProfilingPolicy:
    """Decides which steps under a plan are traced: the first few, then ever fewer."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begins when the plan is activated."""
        self._clock = clock
        self._activated_at = clock()
        self._due = float("inf")
        self._steady_seconds = 0.0

    def should_trace(
        self, calls_under_plan: int, is_recorded: bool, num_checked: int = CHECKED_STEPS
    ) -> bool:
        """Returns whether to trace the next step.

        Args:
            calls_under_plan: number of calls so far.
            is_recorded: whether observations are written to a log directory.
            num_checked: number of calls after the first that are traced in any case.
        """
        if 0 < calls_under_plan <= num_checked:
            return True
        return calls_under_plan > 0 and is_recorded and self._clock() >= self._due

    def record(self, seconds: float, is_steady: bool, traced: bool) -> None:
        """Records the seconds of a step; `is_steady` unless it was traced or the plan's first."""
        if traced:
            now = self._clock()
            cost = max(seconds - self._steady_seconds, 0.0)
            growth = _CHECK_GROWTH * (now - self._activated_at)
            self._due = now + max(cost / CHECK_SHARE, growth)
        if is_steady:
            self._steady_seconds = seconds


@dataclass
class StepProfiler:
    """Profiles the steps of one plan. The first call provides the graph, later calls traces.

    Attributes:
        backend: executes all-reduces.
        plan: the plan.
        weights: argument of the graph that holds each gradient's weight, for known weights.
    """

    backend: Backend
    plan: Plan
    weights: Mapping[str, int] = field(default_factory=dict)
    _placed: tuple[PlacedAllReduce, ...] = field(default=(), init=False)
    _sources: GradientSources | None = field(default=None, init=False)
    _problem: str = field(default="", init=False)

    @property
    def has_graph(self) -> bool:
        """Returns whether the graph is known; False if the first call failed before it was made."""
        return self._sources is not None

    def first(self, call: Callable[[], Any]) -> Any:
        """Makes the plan's first call, in which TensorFlow instantiates the graph.

        TensorFlow does so once, so the graph is stored even if the call fails, as at the end of the
        data.
        """
        capture = GraphCapture()
        try:
            with capture:
                return call()
        finally:
            self._problem = capture.unavailable
            if not self._problem:
                try:
                    sources = gradient_sources(capture.graphs, self.weights)
                    self._sources = _ordered(sources, self.plan.tensor_names)
                    self._placed = placed_all_reduces(capture.graphs)
                except ValueError as error:
                    self._problem = str(error)

    def traced(self, step: int, call: Callable[[], Any]) -> tuple[Any, TrialResult]:
        """Makes another call, under the profiler unless another component uses it."""
        with TraceSession() as session:
            result, seen = self.timed(step, call)
        called_ns, records = seen.called_ns, seen.records
        if seen.problem:
            return result, seen
        if self._sources is None:
            return result, replace(seen, problem=self._problem)
        if session.trace is None:
            return result, replace(
                seen, problem=session.unavailable, is_interrupted=session.is_interrupted
            )
        try:
            events = read_events(session.trace)
            sources = self._sources
            producers = select_producers(events, sources.producers, called_ns, sources.inputs)
            production = step_production(events, producers, called_ns, sources.inputs)
            uses = first_uses(events, sources.users, called_ns, sources.inputs)
            production = production.with_uses(uses)
        except ValueError as error:  # among them IncompleteTraceError; training goes on
            return result, replace(seen, problem=str(error))
        if self._placed:
            records += self.backend.records(
                TracedStep(events, self._placed, called_ns, production, self.plan, step)
            )
        return result, replace(seen, production=production, records=records)

    def timed(self, step: int, call: Callable[[], Any]) -> tuple[Any, TrialResult]:
        """Makes another call, without the cost of the profiler."""
        self.backend.executed()
        result, called_ns = timed(call)
        executed = self.backend.executed()
        records = records_of_step(executed, step)
        if not lie_within(records, called_ns):
            return result, TrialResult(None, (), "the clock was set during the step", called_ns)
        gathers = gathers_among(executed)
        return result, TrialResult(None, records, "", called_ns, gathers=gathers)


def timed(call: Callable[[], Any]) -> tuple[Any, tuple[int, int]]:
    """Returns the result of a call, with its begin and end in nanoseconds since the epoch.

    The difference is right even if the system clock is set during the call.
    """
    start_ns, begin = time.time_ns(), time.monotonic_ns()
    result = call()
    return result, (start_ns, start_ns + time.monotonic_ns() - begin)


def lie_within(records: Sequence[AllReduceRecord], called_ns: tuple[int, int]) -> bool:
    """Returns whether the all-reduces of a call were timed by the same clock as the call."""
    start_ns, stop_ns = called_ns
    return all(
        start_ns - _CLOCKS_APART_NS <= r.enqueued_ns and r.finished_ns <= stop_ns + _CLOCKS_APART_NS
        for r in records
    )


def _ordered(sources: GradientSources, order: Sequence[str]) -> GradientSources:
    """Returns the sources with producers in tensor order, which plans may not follow."""
    producers: Mapping[str, tuple[str, ...]] = {
        name: sources.producers[name] for name in order if name in sources.producers
    }
    return replace(sources, producers=producers)
