"""From the marks of one rank or two to overlap samples. Pure functions.

Times are seconds of one clock, such as since the start of backward computation.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tf_libra import OverlapSample
from tf_libra.profiling.overlap_samples import split_at_end_of_computation

# Overlaps shorter than this lie within the resolution of device events.
_SHORTEST_OVERLAP = 2e-6


@dataclass(frozen=True)
class Progress:
    """Progress of computation, and the times at which it was measured.

    Attributes:
      at: ascending times, shape [n], the first being the start of computation.
      done: contention-free seconds of computation done by then, shape [n], ascending from 0.
    """

    at: tuple[float, ...]
    done: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.at) != len(self.done) or len(self.at) < 2:
            raise ValueError(
                f"at and done must have the same length of at least 2, got {len(self.at)} and "
                f"{len(self.done)}"
            )

    @property
    def end(self) -> float:
        """When computation ended."""
        return self.at[-1]

    def by(self, time: float) -> float:
        """Contention-free seconds done by a time; between two marks progress is even."""
        return float(np.interp(time, self.at, self.done))


@dataclass(frozen=True)
class Span:
    """One all-reduce on one rank: from when it could start to when it was done."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        """Duration on this rank, including the time that it waited for others."""
        return self.end - self.start


def last_to_arrive(spans: Sequence[Span]) -> int:
    """The rank that the others waited for: an all-reduce takes as long as it does there.

    An all-reduce ends on all ranks at the same time, so it is the rank with the shortest span.
    """
    return min(range(len(spans)), key=lambda rank: spans[rank].seconds)


def sample(
    span: Span,
    progress: Progress | None,
    num_bytes: int,
    num_threads: int,
    *,
    step: int = 0,
    group: int = 0,
    plan: str = "",
) -> OverlapSample | None:
    """An all-reduce split at the end of computation (LIBRA, Eqs. 9-11).

    Args:
      span: on the rank that arrived last.
      progress: of that rank's computation; None where nothing was computed.
      num_bytes: c, at least 1.
      num_threads: r.
      step: the step it was measured in.
      group: the index of its group in the plan.
      plan: which plan was running.

    Returns:
      The sample; None where the clock saw no time go by.
    """
    if span.seconds <= 0:
        return None
    done, overlap, residual = 0.0, 0.0, span.seconds
    if progress is not None:
        done, overlap, residual = split_at_end_of_computation(
            span.start,
            span.end,
            progress.end,
            lambda start, stop: progress.by(stop) - progress.by(start),
            _SHORTEST_OVERLAP,
        )
    return OverlapSample(
        num_bytes=num_bytes,
        num_threads=num_threads,
        compute_seconds=done,
        overlap_seconds=overlap,
        residual_seconds=residual,
        step=step,
        group=group,
        plan=plan,
    )


def bus_bandwidth(num_bytes: int, seconds: float, num_workers: int) -> float:
    """Bytes per second that a ring all-reduce sends over each link: 2(N-1)/N·c/t."""
    return 2 * (num_workers - 1) / num_workers * num_bytes / seconds
