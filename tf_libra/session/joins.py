"""`hvd.join()` beside planned all-reduces, which need every rank in every step."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_libra.backends import control as control_lib
from tf_libra.backends import side_channel

_JOIN = "hvd.join()"


def meeting_first(original: Callable[..., Any]) -> Callable[..., Any]:
    """Of the op that `hvd.join` calls: waits there only if every rank has come to it.

    Horovod lends the ranks that have joined to its own all-reduces; the others would wait for them
    in vain in those that lanes carry.
    """

    def join(*args: Any, **kwargs: Any) -> Any:
        control = control_lib.running()
        if control is None or not tf.executing_eagerly():
            return original(*args, **kwargs)
        try:
            side_channel.meet("the end of this rank's data", _JOIN)
        except tf.errors.OpError as error:
            reason = (
                f"{_JOIN} was called by rank {control.rank}, and another rank has a step to take."
                " TF-Libra's all-reduces need every rank in every step: give each rank equally"
                " many batches"
            )
            control.abort(reason)
            raise ValueError(f"{reason} ({error.message})") from error
        return original(*args, **kwargs)

    return join
