"""All-reduces that carry no planned gradient: sparse rows, and positions of ranks in the script.

They go over the lanes in the common order of all all-reduces. So both sides immediately notice a
rank that is elsewhere in its script.
"""

from typing import Any

import tensorflow as tf

from tf_libra.internal import native
from tf_libra.specs.telemetry import UNPLANNED


def all_reduce(tensor: Any, name: str, function: str, reduction: str = "sum") -> Any:
    """One tensor summed or averaged over all ranks; no plan fuses it with others.

    Args:
        tensor: of a floating dtype, of the same shape on every rank.
        name: what it is called, the same on every rank.
        function: the training function that it belongs to.
        reduction: "sum" or "average".
    """
    (reduced,) = native.load().ops.libra_all_reduce(
        tensors=[tensor],
        tensor_names=[name],
        function=function,
        reduction=reduction,
        plan=UNPLANNED,
        name="LibraSideChannel",
    )
    return reduced


def meet(what: str, function: str) -> None:
    """Returns when every rank is at the same point of the same function.

    Raises:
        tf.errors.OpError: another rank all-reduces something else, or is gone.
    """
    with tf.init_scope(), tf.device("/cpu:0"):
        all_reduce(tf.zeros([1]), what, function)
