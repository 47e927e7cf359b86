"""Epochs of `fit` in which ranks have different numbers of batches.

Ranks exchange the numbers once per epoch. A rank whose batches have ended repeats the last one with
the weight zero, before Keras ends its epoch (`uneven_data.py`). So at the end of an epoch all ranks
have taken equally many steps.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import keras

from tf_libra.capture.gradient_weight import gradient_weight, is_joined
from tf_libra.coordination import current_job
from tf_libra.keras import multi_worker_fit

_SYNC_POINT = "the first batch of an epoch"
_EXECUTION = "the next batches of an epoch"


class _Epochs(keras.callbacks.Callback):
    """Callback that Keras gives the number of batches of an epoch."""

    def __init__(self, begin: Callable[[int | None], None], end: Callable[[], None]) -> None:
        """Calls `begin` with the number, None if it is unknown, and `end` before user callbacks."""
        super().__init__()
        self._begin = begin
        self._end = end

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Begins an epoch."""
        self._begin(self.params.get("steps"))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Ends an epoch."""
        self._end()


class UnevenEpochs:
    """Batches of this rank and of the others in the current epoch of `fit`."""

    def __init__(self, model: keras.Model, on_epoch_end: Callable[[], None] = lambda: None) -> None:
        """Replaces the model's `fit`.

        Args:
            model: model whose training steps call `step`.
            on_epoch_end: called on all ranks at the end of an epoch, before the user's callbacks.
        """
        self._model = model
        self._on_epoch_end = on_epoch_end
        self._end()
        model.fit = self._fit

    def leave(self) -> None:
        """Makes the model's `fit` Keras' own again."""
        if getattr(self._model.fit, "__self__", None) is self:
            del self._model.fit

    def _fit(self, *args: Any, **kwargs: Any) -> Any:
        original = functools.partial(type(self._model).fit, self._model)
        signature = inspect.signature(original)
        if multi_worker_fit.is_of_workers(self._model) or "callbacks" not in signature.parameters:
            return original(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        bound.arguments["callbacks"] = self._with_begin(bound.arguments.get("callbacks"))
        try:
            return original(*bound.args, **bound.kwargs)
        finally:
            self._end()

    def _with_begin(self, callbacks: Any) -> Any:
        if isinstance(callbacks, keras.callbacks.CallbackList):
            return callbacks  # has its parameters already; ranks need equally many batches
        return [_Epochs(self._begin, self._on_epoch_end), *keras.tree.flatten(callbacks or [])]

    def _begin(self, num_batches: int | None) -> None:
        self._is_exchanged, self._num_batches, self._num_trained = False, num_batches, 0
        self._lengths: list[int] = []

    def _end(self) -> None:
        self._begin(None)
        self._is_exchanged = True  # `train_on_batch` has no epochs

    def _release(self) -> None:
        if is_joined():
            gradient_weight().leave()

    def exchange(self) -> None:
        """Exchanges the numbers of batches, once per epoch, when the ranks have met.

        Raises:
            HorovodInternalError: another rank is elsewhere, or lost; `tf.errors.UnavailableError`
                in a job without Horovod.
        """
        if self._is_exchanged:
            return
        lengths = _all_gather(_SYNC_POINT, self._num_batches)
        if lengths is None:
            return
        self._is_exchanged = True
        is_known = all(isinstance(length, int) and length > 0 for length in lengths)
        self._lengths = lengths if is_known and len(set(lengths)) > 1 else []

    def agree(self, is_alike: bool) -> bool:
        """Returns whether all ranks have alike batches; shapes may differ on one rank alone.

        Raises:
            HorovodInternalError: see `exchange`.
        """
        everyone = _all_gather(_EXECUTION, is_alike)
        return is_alike if everyone is None else all(everyone)

    @property
    def differ(self) -> bool:
        """Returns whether the ranks have different numbers of batches in this epoch."""
        return bool(self._lengths)

    def count(self, num_batches: int) -> None:
        """Counts batches of an epoch in which ranks have equally many."""
        self._num_trained += num_batches

    def step(self, run: Callable[[Any], Any], data: Any) -> Any:
        """Trains a batch, and after this rank's last one takes part in the steps of the others.

        Args:
            run: trains one batch.
            data: the batch.
        """
        outputs = self._weighted(run, data, has_batch=True)
        self.exchange()  # after the first step of all
        if self._num_trained == self._num_batches:
            for _ in range(self._num_trained, max(self._lengths, default=0)):
                self._weighted(run, data, has_batch=False)
        return outputs

    def _weighted(self, run: Callable[[Any], Any], data: Any, has_batch: bool) -> Any:
        if self._lengths:
            num_batches = sum(length > self._num_trained for length in self._lengths)
            gradient_weight().join(len(self._lengths), num_batches, has_batch)
        self._num_trained += 1
        try:
            return run(data)
        finally:
            self._release()


def _all_gather(sync_point: str, value: Any) -> list[Any] | None:
    """Returns the values of all ranks; None if no step has been taken, or no rank is there."""
    control = current_job.get_control()
    if control is None:
        return None
    return current_job.run_at(sync_point, "fit", control, lambda control: control.all_gather(value))
