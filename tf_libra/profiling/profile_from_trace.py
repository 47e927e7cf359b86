"""A profile of backward computation from a trace that someone has recorded.

The trace must be of steps that ran `LibraAllReduce`: its events say which tensors are reduced and
which op produces each (`xplane.AllReduceCall`). Nothing else is needed, neither graph nor plan.
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
    """A profile of backward computation from a trace.

    Attributes:
        measured: the profile, with how it was measured.
        problems: reason and number of the steps that could not be used.
        overlapped: share of backward computation during which bytes were exchanged, median over
            the steps; from 0 to 1.
    """

    measured: MeasuredProfile
    problems: Counter[str]
    overlapped: float


@dataclass(frozen=True)
class _Exchange:
    """When the lanes were exchanging bytes, and how many of them."""

    start_ns: int
    end_ns: int
    num_threads: int


def profile_of_trace(
    trace: Trace, cost_model: CostModel | None = None, min_steps: int = 1
) -> TracedProfile:
    """The profile that a trace's steps have in the median.

    While an all-reduce ran concurrently with backward, computation was slower. With a cost model,
    those times are multiplied by its `compute_rate(r)`, which makes them contention-free (LIBRA,
    Eq. 5); without one they are taken as they are, and the plans made from them are too pessimistic
    about computation. A trace of a run under `syneasgd` needs no such correction.

    Args:
        trace: of steps that ran `LibraAllReduce`.
        cost_model: of the same machines.
        min_steps: fewest steps that must be usable.

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
    # Plans may have changed on the way, and with them the order of the groups.
    steps = [_in_order(step, steps[0].names) for step in steps]
    measured = measured_profile(steps, sizes, min_steps)
    return TracedProfile(measured, problems, statistics.median(overlapped))


def _steps(
    trace: Trace, problems: Counter[str]
) -> list[tuple[list[AllReduceCall], tuple[int, int]]]:
    """The complete steps: their all-reduces, and the window in which their tensors are produced.

    A step ends where groups start over, or a tensor comes up again. Its tensors are produced
    between the last call of the step before and its own last call.
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
    """Bytes of each tensor: the most that any plan's parts of it add up to."""
    parts: dict[tuple[str, str], dict[int, int]] = {}
    for call in calls:
        for (name, start), num_bytes in zip(call.parts, call.num_bytes, strict=True):
            parts.setdefault((call.plan, name), {})[start] = num_bytes
    sizes: dict[str, int] = {}
    for (_, name), by_start in parts.items():
        sizes[name] = max(sizes.get(name, 0), sum(by_start.values()))
    return sizes


def _exchanges(trace: Trace) -> list[_Exchange]:
    """Returns the exchanges by time; one at a time, as the engine runs them."""
    threads = {one.sequence: one.num_threads for one in trace.lanes if not one.phase}
    spans: dict[int, tuple[int, int]] = {}
    for one in trace.lanes:
        if one.phase == "exchange":
            start_ns, end_ns = spans.get(one.sequence, (one.start_ns, one.end_ns))
            spans[one.sequence] = min(start_ns, one.start_ns), max(end_ns, one.end_ns)
    return [
        _Exchange(*span, threads[sequence])
        for sequence, span in sorted(spans.items(), key=lambda item: item[1])
        if sequence in threads
    ]


def _overlapped(step: StepProduction, exchanges: Sequence[_Exchange]) -> float:
    total = step.last_ns - step.backward_start_ns
    beside = sum(
        max(0, min(one.end_ns, step.last_ns) - max(one.start_ns, step.backward_start_ns))
        for one in exchanges
    )
    return beside / total if total > 0 else 0.0


def _contention_free(
    step: StepProduction, exchanges: Sequence[_Exchange], cost_model: CostModel
) -> StepProduction:
    """The same step, with the times that it would have had without communication."""
    start_ns = step.backward_start_ns
    produced = np.maximum(step.produced_ns - start_ns, 0)
    lost = np.zeros(len(produced))
    for one in exchanges:
        begin, end = max(one.start_ns - start_ns, 0), one.end_ns - start_ns
        beside = np.clip(produced, begin, max(begin, end)) - begin
        lost += beside * (1.0 - float(cost_model.compute_rate(one.num_threads)))
    free_ns = start_ns + np.maximum(produced - lost, 0).astype(np.int64)
    return dataclasses.replace(step, produced_ns=free_ns)


def _in_order(step: StepProduction, names: tuple[str, ...]) -> StepProduction:
    place = {name: index for index, name in enumerate(step.names)}
    return dataclasses.replace(
        step, names=names, produced_ns=step.produced_ns[[place[name] for name in names]]
    )
