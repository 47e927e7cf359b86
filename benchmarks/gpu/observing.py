"""Trial results for tuning, from what each rank of a team measured in a step. Pure functions.

Times are seconds since the start of backward computation, of each rank's own device.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.gpu.overlap import Span, last_to_arrive
from tf_libra import Plan
from tf_libra.autotune import TrialResult
from tf_libra.profiling.gradient_timing import StepProduction
from tf_libra.specs.telemetry import AllReduceRecord


@dataclass(frozen=True)
class Seen:
    """A step on one rank.

    Attributes:
      produced: when each gradient was there, in backward order.
      spans: (group of the plan, all-reduce), in the order of launch.
    """

    produced: tuple[float, ...]
    spans: tuple[tuple[int, Span], ...]


def observation(ranks: Sequence[Seen], plan: Plan, step: int) -> TrialResult:
    """A step as the first rank saw it, without what it waited for the others.

    An all-reduce ends on all ranks at the same time, so it takes as long as on the last to arrive.
    A gradient that comes out of its usual order counts from the latest before it: gradients lie in
    the plan's order in their buffer.

    Args:
      ranks: of one team, all of which launched the same all-reduces.
      plan: under which the step ran.
      step: its number.
    """
    first = ranks[0]
    produced = np.maximum.accumulate(np.maximum(first.produced, 0.0))
    records = []
    for position, (index, span) in enumerate(first.spans):
        last = last_to_arrive([rank.spans[position][1] for rank in ranks])
        start = span.end - ranks[last].spans[position][1].seconds
        group = plan.groups[index]
        records.append(
            AllReduceRecord(
                step=step,
                sequence=position,
                plan=plan.short_id,
                group=index,
                num_threads=group.num_threads,
                num_bytes=plan.group_bytes[index],
                enqueued_ns=_ns(span.start),
                started_ns=_ns(start),
                first_byte_ns=_ns(start),
                finished_ns=_ns(span.end),
                tensor_names=plan.tensor_names[group.start : group.stop],
            )
        )
    production = StepProduction(
        names=plan.tensor_names,
        produced_ns=np.rint(produced * 1e9).astype(np.int64),
        inferred={},
        backward_start_ns=0,
    )
    return TrialResult(production, tuple(records))


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
