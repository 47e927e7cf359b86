"""`hvd.join()` in a job with planned all-reduces, which need every rank in every step."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_libra.coordination import control_plane

_JOIN = "hvd.join()"


def meeting_first(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the op that `hvd.join` calls, so that it waits only if every rank has come to it.

    Horovod lends the ranks that have joined to its own all-reduces, but gathers nothing from them.
    In all-reduces that lanes carry, the other ranks would wait for them until they time out.
    """

    def join(*args: Any, **kwargs: Any) -> Any:
        controls = control_plane.running()
        if not controls or not tf.executing_eagerly():
            return original(*args, **kwargs)
        try:
            for control in controls:
                control.meet("the end of this rank's data", _JOIN, quiet=True)
        except (tf.errors.OpError, control_plane.EngineError) as error:
            reason = (
                f"{_JOIN} was called by rank {controls[0].rank}, and another rank has a step to"
                " take. TF-Libra's all-reduces need every rank in every step: give each rank"
                " equally many batches"
            )
            for control in controls:
                control.abort(reason)
            raise ValueError(f"{reason} ({error})") from error
        try:
            return original(*args, **kwargs)
        finally:
            for control in controls:
                control.resume()

    return join
