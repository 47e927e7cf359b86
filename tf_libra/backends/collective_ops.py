"""Ops that carry tensors between ranks, without gradients, eagerly and in functions.

`tf_libra.collectives` validates the arguments of users. The all-reduces here carry no gradient but
rows of sparse ones, or the ranks' positions in the script. They use the lanes in the common order
of all all-reduces, so both sides notice immediately if a rank is elsewhere in its script.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_libra.internal import native
from tf_libra.internal.tf_internal import without_op_callbacks
from tf_libra.specs.telemetry import UNPLANNED

# The engine takes tensors from the host's memory.
_HOST = "/cpu:0"


def send(tensor: Any, to_rank: int, name: str, one_sided: bool = False) -> Any:
    """Sends to another rank without waiting; returns a scalar zero of the tensor's dtype.

    `one_sided` answers a receive that `Engine.await_read` has returned.
    """
    with tf.device(_HOST):
        return native.load().ops.libra_send(
            tensor=tensor, to_rank=to_rank, tensor_name=name, one_sided=one_sided
        )


def receive(dtype: Any, shape: Any, from_rank: int, name: str) -> Any:
    """Returns the tensor that another rank sends; `shape` is static or an int64 tensor."""
    return received(receive_start(dtype, shape, from_rank, name))


def receive_start(
    dtype: Any, shape: Any, from_rank: int, name: str, one_sided: bool = False
) -> Any:
    """Starts to receive without waiting; pass the result to `received`, as it has no values yet.

    The other rank learns of a `one_sided` receive by `Engine.await_read`. One without elements is a
    notice, which arrives, too, if the other rank is gone.
    """
    with tf.device(_HOST), without_op_callbacks():
        return native.load().ops.libra_receive_start(
            shape=shape, T=dtype, from_rank=from_rank, tensor_name=name, one_sided=one_sided
        )


def received(begun: Any) -> Any:
    """Waits for the tensor of `receive_start` and returns it."""
    with tf.device(_HOST):
        return native.load().ops.libra_message_wait(*begun)


def collective(
    kind: str,
    tensor: Any,
    ranks: Sequence[int],
    name: str,
    root: int | None = None,
    reduction: str = "sum",
) -> Any:
    """Runs a collective among some ranks; `kind` is a name in `tf_libra.collectives`."""
    ops = native.load().ops
    with tf.device(_HOST):
        with without_op_callbacks():
            begun = ops.libra_collective_start(
                tensor=tensor,
                kind=kind,
                ranks=list(ranks),
                root=-1 if root is None else root,
                reduction=reduction,
                tensor_name=name,
            )
        return ops.libra_message_wait(*begun)


def all_reduce(
    tensor: Any,
    name: str,
    function: str,
    reduction: str = "sum",
    ends: Any = None,
    is_shared: Any = None,
    is_planned: bool = False,
) -> Any:
    """Returns a tensor summed or averaged over all ranks.

    Args:
        tensor: of a floating dtype, of the same shape on every rank but for `ends`.
        name: the same on every rank.
        function: training function that it belongs to.
        reduction: "sum" or "average".
        ends: int32 [size], if `tensor` has rows of this rank alone: where those of each rank end
            among all ranks' rows, which are returned in rank order, divided for an average.
        is_shared: int32 scalar, with `ends`: 1 if every rank has all rows, which are reduced as
            without `ends`; 0 if not, and rows are returned undivided.
        is_planned: whether plans include it.
    """
    (reduced,) = native.load().ops.libra_all_reduce(
        tensors=[tensor],
        ends=[part for part in (ends, is_shared) if part is not None],
        tensor_names=[name],
        function=function,
        reduction=reduction,
        plan="" if is_planned else UNPLANNED,
        name="LibraAllReduce" if is_planned else "LibraSideChannel",
    )
    return reduced


def barrier(what: str, function: str) -> None:
    """Returns when every rank is at the same point of the same function.

    Raises:
        tf.errors.OpError: another rank runs another all-reduce, or is lost.
    """
    with tf.init_scope(), tf.device("/cpu:0"):
        all_reduce(tf.zeros([1]), what, function)
