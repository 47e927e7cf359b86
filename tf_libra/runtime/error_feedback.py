"""State of error feedback, which a checkpoint of each rank can contain."""

import io
import json
from typing import Any

import numpy as np
import tensorflow as tf

from tf_libra.backends import error_feedback
from tf_libra.internal import log_utils

_ABOUT = "about"


class ErrorFeedbackState(tf.train.experimental.PythonState):
    """Rounding errors that this rank adds to its next gradients, for `tf.train.Checkpoint`.

    Errors belong to one rank: a checkpoint restores those that the same rank of as many ranks has
    saved. Other ranks, and a checkpoint without the state, begin at zero.
    """

    def __init__(self, function: str) -> None:
        """Creates the state of a training function, at zero.

        Args:
            function: identity of the training function.
        """
        super().__init__()
        self._function = function
        self._place: tuple[int, int] | None = None
        self._restored: bytes | None = None

    def join(self, rank: int, size: int) -> None:
        """Begins a job: with errors that were restored before, else at zero."""
        self._place = rank, size
        self._apply()

    def serialize(self) -> bytes:
        """Returns the errors of all tensors, with rank and number of ranks."""
        if self._place is None:
            return self._restored or b""
        errors = error_feedback.copy_errors(self._function)
        about = {"place": self._place, "names": list(errors)}
        packed = io.BytesIO()
        arrays: dict[str, Any] = {_ABOUT: np.array(json.dumps(about))}
        arrays |= {str(index): values for index, values in enumerate(errors.values())}
        np.savez(packed, **arrays)
        return packed.getvalue()

    def deserialize(self, serialized: Any) -> None:
        """Replaces the errors by those of a checkpoint; before the first step, from then on.

        Raises:
            ValueError: the bytes are no state of error feedback.
        """
        restored = bytes(serialized)
        if restored:
            _unpack(restored)
        self._restored = restored
        if self._place is not None:
            self._apply()

    def _apply(self) -> None:
        restored, self._restored = self._restored, None
        errors: dict[str, Any] = {}
        if restored:
            place, saved = _unpack(restored)
            if place == self._place:
                errors = saved
            else:
                assert self._place is not None
                log_utils.logger(self._place[0]).warning(
                    "error_feedback: the checkpoint holds the rounding errors of rank %d of %d;"
                    " this is rank %d of %d, and begins at zero",
                    *place,
                    *self._place,
                )
        error_feedback.set_errors(self._function, errors)


def _unpack(serialized: bytes) -> tuple[tuple[int, int], dict[str, Any]]:
    """Returns rank and number of ranks, and the errors by tensor."""
    try:
        with np.load(io.BytesIO(serialized), allow_pickle=False) as arrays:
            about = json.loads(str(arrays[_ABOUT]))
            rank, size = about["place"]
            errors = {name: arrays[str(index)] for index, name in enumerate(about["names"])}
    except Exception as error:
        raise ValueError(f"error_feedback: the state cannot be read: {error}") from error
    return (int(rank), int(size)), errors
