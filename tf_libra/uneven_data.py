"""Ranks with different numbers of batches.

Every step needs all ranks. A rank without further batches repeats its last one with the weight
zero until the last rank is done, and the weights of the other ranks make their average that of the
batches there were.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

import tensorflow as tf

from tf_libra import collectives
from tf_libra.capture.gradient_weight import GradientWeight, gradient_weight, is_joined
from tf_libra.config import validators
from tf_libra.coordination import current_job
from tf_libra.coordination.control_plane import Control

_Batch = TypeVar("_Batch")
_END: Any = object()
_UNKNOWN = -1
_SYNC_POINT = "a loop over tf_libra.join"


def join(
    batches: Iterable[_Batch], timeout_seconds: float | None = None
) -> "JoinedBatches[_Batch]":
    """Returns batches to iterate over on all ranks, which may have different numbers of them.

        for images, labels in tf_libra.join(dataset):
            train_step(images, labels)

    The loop takes equally many steps on every rank, and one optimized step per batch. A rank
    without further batches gets its last one again, with the weight zero: the gradient of a step is
    the sum over the ranks that have a batch, divided by their number, as after `hvd.join()`. All
    ranks apply it, so weights and optimizer stay equal. Variables that a step computes from the
    examples of its rank, such as moving averages and metrics, keep their values in a repeated step.

    If every rank knows the number of its batches (`len`, or `cardinality` of a dataset), ranks
    exchange these once. Otherwise they exchange one message before each step. Steps in which every
    rank has a batch are those without `join`. The loop trains a batch before it takes the next one.

    Args:
        batches: batches of this rank, at least one.
        timeout_seconds: as for `optimize`; ignored if a step has connected the ranks before.

    Raises:
        ValueError: `timeout_seconds` is invalid. On every rank: a rank has no batch at all, or
            `MultiWorkerMirroredStrategy` reduces gradients. From the step: its strategy is one of
            pipelines or bursts, it computes gradients per example, or has
            `inner_gradients="average"`.
        HorovodInternalError, or `tf.errors.UnavailableError` in a job without Horovod: a rank is
            gone, late, or in a step outside the loop.
    """
    return JoinedBatches(batches, timeout_seconds)


class JoinedBatches(Generic[_Batch]):
    """Batches of one rank, as `join` returns them.

    Attributes:
        is_repeating: whether the current batch is repeated with the weight zero.
    """

    def __init__(self, batches: Iterable[_Batch], timeout_seconds: float | None) -> None:
        """See `join`."""
        self._batches = batches
        self._timeout_seconds = validators.check_timeout("timeout_seconds", timeout_seconds)
        self.is_repeating = False

    def __iter__(self) -> Iterator[_Batch]:
        """Yields this rank's batches, then the last one until every rank's data have ended."""
        job = current_job.get_job()
        _, size = job.rank_and_size()
        if size == 1:
            yield from self._batches
            return
        if job.by_strategy:
            raise ValueError(
                f"join: {job.name} reduces gradients itself, and no weight reaches them: give each"
                " worker equally many batches"
            )
        if is_joined():
            raise ValueError("join: the loops of two calls must not be nested")
        control = self._connected()
        weight = gradient_weight()
        try:
            yield from self._joined(control, weight, size)
        finally:
            weight.leave()
            self.is_repeating = False

    def _connected(self) -> Control:
        control = current_job.get_control()
        if control is None:
            collectives.connect(self._timeout_seconds)
            control = current_job.get_control()
            assert control is not None
        return control

    def _joined(self, control: Control, weight: GradientWeight, size: int) -> Iterator[_Batch]:
        lengths = _gather(control, _length(self._batches))
        iterator, last, num_steps = iter(self._batches), _END, 0
        while True:
            batch = next(iterator, _END)
            has_batch = batch is not _END
            if min(lengths) == _UNKNOWN:
                having = _gather(control, int(has_batch))
            else:
                having = [int(length > num_steps) for length in lengths]
                _check(has_batch, lengths, num_steps)
            if not any(having):
                return
            if num_steps == 0 and not all(having):
                raise ValueError(f"join: rank {having.index(0)} has no batch; give it one at least")
            last = batch if has_batch else last
            self.is_repeating = not has_batch
            weight.join(size, sum(having), has_batch)
            num_steps += 1
            yield last


def _check(has_batch: bool, lengths: list[int], num_steps: int) -> None:
    expected = lengths[current_job.get_job().rank_and_size()[0]]
    if has_batch != (num_steps < expected):
        raise ValueError(
            f"join: batches have the length {expected}, and"
            f" {'more than' if has_batch else 'only'} {num_steps} batches came"
        )


def _length(batches: Iterable[Any]) -> int:
    """Returns the number of batches; -1 if it is unknown or infinite."""
    if isinstance(batches, tf.data.Dataset):
        return max(int(batches.cardinality()), _UNKNOWN)
    try:
        return len(batches)  # type: ignore[arg-type]
    except TypeError:
        return _UNKNOWN


def _gather(control: Control, number: int) -> list[int]:
    return current_job.run_at(
        _SYNC_POINT, "join", control, lambda control: control.all_gather(number)
    )
