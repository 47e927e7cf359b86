"""When ranks bring their variables up to date while `fit` trains a model as a pipeline.

Each rank updates its own stage, and to bring the others' takes all ranks. So it is done where `fit`
comes by on all of them: at the end of every epoch, before metrics are read, validation runs or a
callback is called; and after those batches whose callbacks look at weights, on whichever rank.
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
# Of Keras' own callbacks, those that save weights every so many batches.
_SAVING = ("ModelCheckpoint", "BackupAndRestore", "OrbaxCheckpoint")
# What looks at variables, and cannot bring them up to date: one rank may do it alone.
_LOOKING = (
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
    """A callback that looks at weights after batches.

    Attributes:
        callback: its type.
        every: after how many batches.
        seen: batches since it did so last.
    """

    callback: str
    every: int
    seen: int = 0

    def is_next(self, num_batches: int) -> bool:
        """Counts `num_batches` more; returns whether the callback then looks at weights."""
        self.seen += num_batches
        if self.seen < self.every:
            return False
        self.seen = 0
        return True


def looks(callbacks: Any, steps_per_execution: int) -> Iterator[SyncPoint]:
    """Yields those callbacks of `fit` that look at weights after batches.

    A user-provided callback that is called after batches may do so, unless it declares
    `looks_at_weights = False`.
    """
    given = getattr(callbacks, "callbacks", callbacks)  # a CallbackList has them
    for one in keras.tree.flatten(given):
        if one is None or not getattr(one, "looks_at_weights", True):
            continue
        kinds = [_defines(one, hook) for hook in _AT_BATCHES]
        if any(kind is not None and not _is_keras(kind) for kind in kinds):
            yield SyncPoint(type(one).__name__, 1)
            continue
        every = getattr(one, "save_freq", "epoch")
        if type(one).__name__ in _SAVING and isinstance(every, int):
            if steps_per_execution > 1:  # Keras counts these otherwise than they are trained
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
    """Stands between a model and what looks at its variables."""

    def __init__(self, model: keras.Model, synchronize: Callable[[], None]) -> None:
        """Stands in for methods of `model` until `leave`.

        Args:
            model: is trained as a pipeline.
            synchronize: brings all its variables up to date, on all ranks.
        """
        self._model = model
        self._synchronize = synchronize
        self._is_behind = False
        self._is_fitting = False
        self._here: list[SyncPoint] = []
        self._anywhere: list[SyncPoint] | None = None
        self._has_told = False
        self._replaced = ["fit", "get_metrics_result", *_LOOKING]
        model.fit = self._fit
        model.get_metrics_result = self._get_metrics_result
        for name in _LOOKING:
            setattr(model, name, self._guarded(name))

    def leave(self) -> None:
        """Gives the model its methods back; all ranks call it."""
        self.catch_up()
        for name in self._replaced:
            delattr(self._model, name)
        self._replaced = []

    def trained(self, num_batches: int) -> None:
        """Batches were trained in stages, on all ranks; their callbacks follow."""
        self._is_behind = True
        if not self._is_fitting:
            return
        if self._anywhere is None:
            control = next(iter(control_plane.running()))
            mine = [[one.callback, one.every, one.seen] for one in self._here]
            self._anywhere = [SyncPoint(*one) for rank in control.all_gather(mine) for one in rank]
            self._tell(control.rank)
        due = [one.is_next(num_batches) for one in self._anywhere]
        if any(due):
            self.synchronize()

    def synchronize(self) -> None:
        """Brings variables up to date; all ranks call it."""
        self._synchronize()
        self._is_behind = False

    def catch_up(self) -> None:
        """Brings variables up to date if they are not; all ranks call it."""
        if self._is_behind:
            self.synchronize()

    def _tell(self, rank: int) -> None:
        names = sorted({one.callback for one in self._anywhere or () if one.every == 1})
        if rank == 0 and names and not self._has_told:
            self._has_told = True
            log_utils.logger(rank).info(
                "fit: after every batch all variables are brought up to date for %s, which may"
                " look at them; one that does not says so by looks_at_weights = False",
                ", ".join(names),
            )

    # What stands in for the model's own.

    def _fit(self, *args: Any, **kwargs: Any) -> Any:
        original = functools.partial(type(self._model).fit, self._model)
        given = inspect.signature(original).bind_partial(*args, **kwargs).arguments
        self._here = list(looks(given.get("callbacks"), self._model.steps_per_execution))
        self._anywhere = None
        self._is_fitting = True
        try:
            return original(*args, **kwargs)
        finally:
            self._is_fitting = False

    def _get_metrics_result(self) -> Any:
        """The first thing at the end of every epoch."""
        if self._is_fitting and tf.executing_eagerly():
            self.catch_up()
        return type(self._model).get_metrics_result(self._model)

    def _guarded(self, name: str) -> Callable[..., Any]:
        original = getattr(type(self._model), name)

        @functools.wraps(original)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            if self._is_behind:
                raise ValueError(
                    f"{name} of model {self._model.name!r} would find variables of other ranks'"
                    " stages as they were before the last steps: call synchronize_variables(), on"
                    " all ranks, of what tf_libra.keras.optimize has returned"
                )
            return original(self._model, *args, **kwargs)

        return guarded
