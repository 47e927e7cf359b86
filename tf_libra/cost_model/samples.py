"""Samples of measured all-reduces, and the errors of a cost model on them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tf_libra.cost_model.base import CostModel
from tf_libra.internal import validation
from tf_libra.internal.values import Count, Int32Count, NonNegative, Value

_Array = NDArray[np.float64]


@dataclass(frozen=True)
class OverlapSample(Value):
    """One measured all-reduce of c bytes with r threads, and the concurrent computation.

    Attributes:
      num_bytes: c, at least 1.
      num_threads: r.
      compute_seconds: contention-free seconds b of backward computation done while it ran.
      overlap_seconds: wall seconds of the all-reduce, from the arrival of the last rank on, while
        backward computation ran.
      residual_seconds: wall seconds of the all-reduce after backward computation had ended.
      step: number of the measured step.
      group: index of the tensor group in the plan.
      plan: fingerprint of the active plan; lets a caller hold out whole plans.

    Raises:
      ValueError: a number lies outside its range, the all-reduce took no time, or computation is
        given without overlap.
    """

    num_bytes: Count
    num_threads: Int32Count
    compute_seconds: NonNegative
    overlap_seconds: NonNegative
    residual_seconds: NonNegative
    step: int = 0
    group: int = 0
    plan: str = ""

    def _validate(self) -> None:
        validation.real("overlap_seconds + residual_seconds", self.wall_seconds, above=0)
        if self.compute_seconds > 0 and self.overlap_seconds == 0:
            raise ValueError(
                f"compute_seconds must be 0 if overlap_seconds is 0, got {self.compute_seconds}"
            )

    @property
    def wall_seconds(self) -> float:
        """Wall seconds of the whole all-reduce."""
        return self.overlap_seconds + self.residual_seconds


@dataclass(frozen=True)
class SampleColumns:
    """Samples by column, each of shape [n]."""

    num_bytes: _Array
    threads: _Array
    compute: _Array
    overlap: _Array
    residual: _Array

    @classmethod
    def from_samples(cls, samples: Sequence[OverlapSample]) -> "SampleColumns":
        """Returns the columns of at least one sample, or raises `ValueError`."""
        if not samples:
            raise ValueError("samples must hold at least one sample, got none")
        for index, sample in enumerate(samples):
            validation.instance(f"samples[{index}]", sample, OverlapSample)
        rows = [
            (s.num_bytes, s.num_threads, s.compute_seconds, s.overlap_seconds, s.residual_seconds)
            for s in samples
        ]
        return cls(*np.array(rows, np.float64).T)


def prediction_errors(model: CostModel, samples: Sequence[OverlapSample]) -> _Array:
    """Returns relative errors of predicted all-reduce times, shape [n]; positive: too long.

    By LIBRA's Eqs. 9-11 an all-reduce is done when overlap/(p + a) + residual/(q + a) = 1. If the
    model puts the sum at f instead, it predicts 1/f times the measured time. Samples begin when the
    last rank arrives, so the model's waiting does not count.

    Raises:
      ValueError: no samples, one worker, or a rate that is not positive at a sample's threads.
    """
    if model.num_workers < 2:
        raise ValueError(f"num_workers must be at least 2, got {model.num_workers}")
    model, columns = model.without_waiting(), SampleColumns.from_samples(samples)
    overlapped = model.overlapped_all_reduce(columns.num_bytes, columns.threads)
    exclusive = model.exclusive_all_reduce(columns.num_bytes, columns.threads)
    return 1 / (columns.overlap / overlapped + columns.residual / exclusive) - 1


def median_error(model: CostModel, samples: Sequence[OverlapSample]) -> float:
    """Returns the median of |`prediction_errors`|, of overlapped or of exclusive all-reduces.

    That of the kind whose median is larger. An all-reduce counts where most of it ran. Errors are
    those of `prediction_errors`.
    """
    errors = np.abs(prediction_errors(model, samples))
    is_exclusive = np.array(
        [sample.residual_seconds > sample.overlap_seconds for sample in samples]
    )
    kinds = (errors[is_exclusive], errors[~is_exclusive])
    return max(float(np.median(kind)) for kind in kinds if kind.size)


def computation_errors(model: CostModel, samples: Sequence[OverlapSample]) -> _Array:
    """Returns relative errors of g(b, r) against the measured overlap.

    The shape is [m] for the m samples with computation, in their order.

    Raises:
      ValueError: no samples, or a rate that is not positive at a sample's threads.
    """
    columns = SampleColumns.from_samples(samples)
    computing = columns.compute > 0
    predicted = model.computation_seconds(columns.compute[computing], columns.threads[computing])
    return predicted / columns.overlap[computing] - 1
