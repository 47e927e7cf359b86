"""Backward profile from a recorded trace.

The trace must hold steps that ran `LibraAllReduce`: its events name the tensors and the ops that
produce them (`xplane.AllReduceCall`). Neither graph nor plan is needed.
"""

import dataclasses
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tf_libra.cost_model import CostModel
from tf_libra.profiling.gradient_timing import (
    IncompleteTraceError,
    MeasuredProfile,
    StepProduction,
    measured_profile,
    step_production,
)
from tf_libra.profiling.xplane import AllReduceCall, Trace


@dataclass(frozen=True, eq=False)
class TracedProfile:
    """Profile of backward computation from a trace.

    Attributes:
        measured: profile with the statistics of its measurement.
        problems: reasons for unused steps, with their number.
        overlapped: share of backward computation that overlaps with exchanges, median over the
            steps; from 0 to 1.
    """

    measured: MeasuredProfile
    problems: Counter[str]
    overlapped: float


@dataclass(frozen=True)
class _Exchange:
    """Time span in which the lanes exchanged bytes, and their number."""

    start_ns: int
    end_ns: int
    num_threads: int


def profile_of_trace(
    trace: Trace, cost_model: CostModel | None = None, min_steps: int = 1
) -> TracedProfile:
    """Returns the median profile of a trace's steps.

    All-reduces that overlap with backward slow it down. With a cost model, the overlapped times are
    multiplied by its `compute_rate(r)`, which makes them contention-free (LIBRA, Eq. 5). Without
    one the profile, and plans made from it, overestimate computation. A trace under `syneasgd`
    needs no correction.

    Args:
        trace: trace of steps that ran `LibraAllReduce`.
        cost_model: cost model of the same machines.
        min_steps: least number of usable steps.

    Raises:
        IncompleteTraceError: a `ValueError`: the trace holds too little.
    """
    if not trace.calls:
        raise IncompleteTraceError(
            "the trace has no event of LibraAllReduce that names its tensors: trace a step of"
            " tf_libra.optimize, on two workers or more"
        )
    exchanges = _exchanges(trace)
    problems: Counter[str] = Counter()
    steps: list[StepProduction] = []
    overlapped: list[float] = []
    for calls, window in _steps(trace, problems):
        producers = {
            name: producer
            for call in calls
            for name, producer in zip(call.tensor_names, call.producers, strict=True)
        }
        try:
            production = step_production(trace.events, producers, window)
        except IncompleteTraceError as error:
            problems[str(error)] += 1
            continue
        overlapped.append(_overlapped(production, exchanges))
        if cost_model is not None:
            production = _contention_free(production, exchanges, cost_model)
        steps.append(production)
    if not steps:
        reasons = "; ".join(problems) or "none is complete"
        raise IncompleteTraceError(f"no step of the trace can be used: {reasons}")
    sizes = _sizes(trace.calls)
    # The order of groups differs between plans.
    steps = [_in_order(step, steps[0].names) for step in steps]
    measured = measured_profile(steps, sizes, min_steps)
    return TracedProfile(measured, problems, statistics.median(overlapped))


def _steps(
    trace: Trace, problems: Counter[str]
) -> list[tuple[list[AllReduceCall], tuple[int, int]]]:
    """Returns the complete steps: their all-reduces, and the window of their productions.

    A step ends when group numbers start over or a tensor repeats. Its tensors are produced between
    the last call of the previous step and its own last call.
    """
    split: list[list[AllReduceCall]] = []
    seen: set[tuple[str, int]] = set()
    for call in trace.calls:
        starts_over = not split or call.group < split[-1][-1].group
        if starts_over or seen & set(call.parts):
            split.append([])
            seen = set()
        split[-1].append(call)
        seen |= set(call.parts)
    everything = {name for call in trace.calls for name in call.tensor_names}
    begin_ns = int(trace.events.start_ns.min())
    steps = []
    for calls in split:
        end_ns = calls[-1].enqueued_ns
        missing = everything - {name for call in calls for name in call.tensor_names}
        if missing:
            problems[f"{len(missing)} of {len(everything)} tensors are missing"] += 1
        else:
            steps.append((calls, (begin_ns, end_ns)))
        begin_ns = end_ns
    return steps


def _sizes(calls: Sequence[AllReduceCall]) -> dict[str, int]:
    """Returns the bytes of each tensor: the largest sum of its parts under any plan."""
    parts: dict[tuple[str, str], dict[int, int]] = {}
    for call in calls:
        for (name, start), num_bytes in zip(call.parts, call.num_bytes, strict=True):
            parts.setdefault((call.plan, name), {})[start] = num_bytes
    sizes: dict[str, int] = {}
    for (_, name), by_start in parts.items():
        sizes[name] = max(sizes.get(name, 0), sum(by_start.values()))
    return sizes


def _exchanges(trace: Trace) -> list[_Exchange]:
    """Returns the exchanges in chronological order; the engine runs one at a time."""
    threads = {event.sequence: event.num_threads for event in trace.lanes if not event.phase}
    spans: dict[int, tuple[int, int]] = {}
    for event in trace.lanes:
        if event.phase == "exchange":
            start_ns, end_ns = spans.get(event.sequence, (event.start_ns, event.end_ns))
            spans[event.sequence] = min(start_ns, event.start_ns), max(end_ns, event.end_ns)
    return [
        _Exchange(*span, threads[sequence])
        for sequence, span in sorted(spans.items(), key=lambda item: item[1])
        if sequence in threads
    ]


def _overlapped(step: StepProduction, exchanges: Sequence[_Exchange]) -> float:
    total = step.last_ns - step.backward_start_ns
    overlap = sum(
        max(0, min(exchange.end_ns, step.last_ns) - max(exchange.start_ns, step.backward_start_ns))
        for exchange in exchanges
    )
    return overlap / total if total > 0 else 0.0


def _contention_free(
    step: StepProduction, exchanges: Sequence[_Exchange], cost_model: CostModel
) -> StepProduction:
    """Returns the step with the production times that it would have without communication."""
    start_ns = step.backward_start_ns
    produced = np.maximum(step.produced_ns - start_ns, 0)
    lost = np.zeros(len(produced))
    for exchange in exchanges:
        begin, end = max(exchange.start_ns - start_ns, 0), exchange.end_ns - start_ns
        overlap = np.clip(produced, begin, max(begin, end)) - begin
        lost += overlap * (1.0 - float(cost_model.compute_rate(exchange.num_threads)))
    free_ns = start_ns + np.maximum(produced - lost, 0).astype(np.int64)
    return dataclasses.replace(step, produced_ns=free_ns)


def _in_order(step: StepProduction, names: tuple[str, ...]) -> StepProduction:
    index_by_name = {name: index for index, name in enumerate(step.names)}
    return dataclasses.replace(
        step, names=names, produced_ns=step.produced_ns[[index_by_name[name] for name in names]]
    )
