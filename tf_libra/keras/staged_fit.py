"""Synchronization of variables while `fit` trains a model as a pipeline.

Each rank updates the variables of its own stage, and synchronization takes all ranks. So it happens
where `fit` passes on all of them: at the end of every epoch, before metrics, validation and
callbacks; and after batches for which a callback of any rank reads weights.
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tf_libra.coordination import control_plane
from tf_libra.internal import log_utils

_AT_BATCHES = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
# Keras' callbacks that save weights after a number of batches.
_SAVING = ("ModelCheckpoint", "BackupAndRestore", "OrbaxCheckpoint")
# Methods that read variables and cannot synchronize them, because one rank may call them alone.
_READING = (
    "evaluate",
    "export",
    "get_weights",
    "predict",
    "predict_on_batch",
    "save",
    "save_weights",
    "test_on_batch",
)


@dataclass
class SyncPoint:
    """A callback that reads weights after batches.

    Attributes:
        callback: name of its type.
        every: number of batches between two reads.
        seen: number of batches since the last read.
    """

    callback: str
    every: int
    seen: int = 0

    def is_next(self, num_batches: int) -> bool:
        """Counts batches and returns whether the callback reads weights after them."""
        self.seen += num_batches
        if self.seen < self.every:
            return False
        self.seen = 0
        return True


def find_sync_points(callbacks: Any, steps_per_execution: int) -> Iterator[SyncPoint]:
    """Yields the callbacks of `fit` that may read weights after batches.

    A user-provided callback with a batch hook may, unless it declares `looks_at_weights = False`.
    """
    listed = getattr(callbacks, "callbacks", callbacks)  # of a CallbackList
    for one in keras.tree.flatten(listed):
        if one is None or not getattr(one, "looks_at_weights", True):
            continue
        kinds = [_defines(one, hook) for hook in _AT_BATCHES]
        if any(kind is not None and not _is_keras(kind) for kind in kinds):
            yield SyncPoint(type(one).__name__, 1)
            continue
        every = getattr(one, "save_freq", "epoch")
        if type(one).__name__ in _SAVING and isinstance(every, int):
            if steps_per_execution > 1:  # Keras counts executions here, not batches
                yield SyncPoint(type(one).__name__, 1)
            else:
                seen = getattr(one, "_batches_seen_since_last_saving", 0)
                yield SyncPoint(type(one).__name__, every, seen)


def _defines(callback: Any, hook: str) -> type | None:
    """Returns the class that defines a callback's hook; `object` if the instance defines it."""
    if hook in vars(callback):
        return object
    for kind in type(callback).__mro__:
        if hook in vars(kind):
            return kind
    return None


def _is_keras(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "keras"


class StagedFitSync:
    """Synchronizes the variables of a model before `fit` or a callback reads them."""

    def __init__(
        self, model: keras.Model, synchronize: Callable[[], None], serves_reads: bool = False
    ) -> None:
        """Replaces methods of `model` until `leave`.

        Args:
            model: trained as a pipeline.
            synchronize: synchronizes all its variables; all ranks must call it.
            serves_reads: whether variables can be read at any time without synchronization.
        """
        self._serves_reads = serves_reads
        self._model = model
        self._synchronize = synchronize
        self._is_stale = False
        self._is_fitting = False
        self._here: list[SyncPoint] = []
        self._anywhere: list[SyncPoint] | None = None
        self._has_logged = False
        self._replaced = ["fit", "get_metrics_result", *_READING]
        model.fit = self._fit
        model.get_metrics_result = self._get_metrics_result
        for name in _READING:
            setattr(model, name, self._guarded(name))

    def leave(self) -> None:
        """Restores the methods of the model; all ranks call it."""
        self.catch_up()
        for name in self._replaced:
            delattr(self._model, name)
        self._replaced = []

    def on_batches_trained(self, num_batches: int) -> None:
        """Synchronizes if a callback after these batches reads weights; all ranks call it."""
        if self._serves_reads:
            return
        self._is_stale = True
        if not self._is_fitting:
            return
        if self._anywhere is None:
            control = next(iter(control_plane.running()))
            mine = [[one.callback, one.every, one.seen] for one in self._here]
            self._anywhere = [SyncPoint(*one) for rank in control.all_gather(mine) for one in rank]
            self._log_callbacks(control.rank)
        due = [one.is_next(num_batches) for one in self._anywhere]
        if any(due):
            self.synchronize()

    def synchronize(self) -> None:
        """Synchronizes variables; all ranks call it."""
        self._synchronize()
        self._is_stale = False

    def catch_up(self) -> None:
        """Synchronizes variables if they are stale; all ranks call it."""
        if self._is_stale:
            self.synchronize()

    def _log_callbacks(self, rank: int) -> None:
        names = sorted({one.callback for one in self._anywhere or () if one.every == 1})
        if rank == 0 and names and not self._has_logged:
            self._has_logged = True
            log_utils.logger(rank).info(
                "fit: variables are synchronized after every batch for %s, which may read weights;"
                " set looks_at_weights = False on a callback that does not",
                ", ".join(names),
            )

    # Replacements of the model's methods.

    def _fit(self, *args: Any, **kwargs: Any) -> Any:
        original = functools.partial(type(self._model).fit, self._model)
        given = inspect.signature(original).bind_partial(*args, **kwargs).arguments
        self._here = list(find_sync_points(given.get("callbacks"), self._model.steps_per_execution))
        self._anywhere = None
        self._is_fitting = True
        try:
            return original(*args, **kwargs)
        finally:
            self._is_fitting = False

    def _get_metrics_result(self) -> Any:
        """Synchronizes first: Keras calls it before all else at the end of an epoch."""
        if self._is_fitting and tf.executing_eagerly():
            self.catch_up()
        return type(self._model).get_metrics_result(self._model)

    def _guarded(self, name: str) -> Callable[..., Any]:
        original = getattr(type(self._model), name)

        @functools.wraps(original)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            if self._is_stale:
                raise ValueError(
                    f"{name} of model {self._model.name!r} would read stale variables of other"
                    " ranks' stages: call, on all ranks, synchronize_variables() of the object"
                    " that tf_libra.keras.optimize has returned"
                )
            return original(self._model, *args, **kwargs)

        return guarded
