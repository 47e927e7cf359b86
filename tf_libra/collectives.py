"""Tensors from rank to rank, and what sets of ranks do together, as functions of TensorFlow.

They run eagerly and in a `tf.function`, on the connections of the ranks that take part; other ranks
know nothing of it and do not wait. A send never waits for its receiver. In a function nothing
waits but what uses a tensor that has not come yet, so two ranks may begin their sends, receives and
collectives in different orders; eagerly each call returns with its result, so send first.

A send and a receive meet by name, as do the calls of the ranks of a set: a name may be used again,
but not by two that are under way concurrently between the same ranks, unless they begin in the same
order on both sides. Where the two sides differ in dtype, shape or anything else, both raise an
error that says how (`tf.errors.FailedPreconditionError`). A rank that does not come in time, is
gone or has given up is an error as of every all-reduce, after which nothing goes on.

Each has a gradient, which is exchanged in turn, under the name with `/gradient` behind it. So where
one rank differentiates, those that it exchanged with have to.
"""

import atexit
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_libra.backends import collective_ops, lanes_bootstrap
from tf_libra.backends import engine as engine_lib
from tf_libra.coordination import control_plane, current_job
from tf_libra.internal.process_state import STATE

_SUM, _AVERAGE = "sum", "average"
_SHOWN = 200  # characters of a set of ranks, in an error


def connect(timeout_seconds: float = 600.0, stall_warning_seconds: float = 30.0) -> None:
    """Lets all ranks meet, unless a step of an optimized function has done so.

    Args:
        timeout_seconds: how long anything may wait for another rank.
        stall_warning_seconds: after how long a wait is warned about.

    Raises:
        ValueError: there is no job: `hvd.init()` has not been called, and no
            `MultiWorkerMirroredStrategy` was made.
        EngineError: a rank cannot be reached in time.
    """
    job = current_job.get_job()
    for running in control_plane.left_over(job.world(timeout_seconds)):
        running.close(control_plane.LEFT)
    if engine_lib.running() is None:
        terms = control_plane.ControlConfig(1, timeout_seconds, stall_warning_seconds)
        engine = lanes_bootstrap.meet(job, terms)
        atexit.register(lambda: engine.close(control_plane.why_program_ends()))


def send(tensor: Any, to_rank: int, name: str) -> tf.Tensor:
    """Sends a tensor to another rank, which has to `receive` it, and does not wait for that.

    The gradient is received from that rank: differentiate what is returned, `tape.gradient(sent,
    variables)`, in place of the loss that `to_rank` has.

    Args:
        tensor: of any dtype of numbers, or bool.
        to_rank: another rank.
        name: the same on both sides.

    Returns:
        A scalar zero of the tensor's dtype, for the gradient.

    Raises:
        ValueError: the rank or the name cannot be.
        tf.errors.OpError: no engine runs, or it has failed.
    """
    to_rank = _peer("to_rank", to_rank)
    _check_name(name)
    tensor = tf.convert_to_tensor(tensor)

    def start(value: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
        sent = collective_ops.send(value, to_rank, name)

        def gradient(_: tf.Tensor) -> tf.Tensor:
            shape = tf.shape(value, tf.int64)
            return receive(value.dtype, shape, to_rank, f"{name}/gradient")

        return sent, gradient

    return _differentiable(start, tensor)


def receive(
    dtype: tf.DType, shape: Any, from_rank: int, name: str, anchor: Any = None
) -> tf.Tensor:
    """Receives a tensor that another rank sends.

    The gradient is sent back, where a tape differentiates something that depends on the tensor
    with respect to whatever: `from_rank` has to differentiate its `send`. `tf.stop_gradient` of
    the tensor keeps it here.

    Args:
        dtype: of the tensor that is sent.
        shape: of it, fully known, or a tensor of one dimension.
        from_rank: another rank.
        name: the same on both sides.
        anchor: what a tape has to watch for the gradient to be sent, a scalar; None: any tape
            that watches variables.

    Raises:
        ValueError: the rank, the shape or the name cannot be.
        tf.errors.OpError: no engine runs, or it has failed.
    """
    from_rank = _peer("from_rank", from_rank)
    _check_name(name)
    dtype = tf.as_dtype(dtype)
    shape = _shape(shape)

    def start(known: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
        received = collective_ops.receive(dtype, shape, from_rank, name)

        def gradient(incoming: tf.Tensor) -> tf.Tensor:
            # Zero, once it was sent.
            return tf.cast(send(incoming, from_rank, f"{name}/gradient"), known.dtype)

        return received, gradient

    if not dtype.is_floating:
        return start(tf.zeros([]))[0]
    return _differentiable(start, tf.convert_to_tensor(_anchor() if anchor is None else anchor))


def all_reduce(tensor: Any, ranks: Sequence[int], name: str, op: str = _SUM) -> tf.Tensor:
    """The sum (or average) over a set of ranks, of the same bits on each of them.

    Args:
        tensor: of a floating dtype, of the same shape on every rank of the set.
        ranks: the set, in the order of summation; the same on every one of them.
        name: the same on every rank of the set.
        op: "sum" or "average".

    Raises:
        ValueError: an argument cannot be; its value and what is allowed.
        tf.errors.OpError: no engine runs, or it has failed.
    """
    _check_op(op)
    return _collective(
        "all_reduce",
        tensor,
        ranks,
        name,
        lambda incoming, again: all_reduce(incoming, ranks, again, op),
        reduction=op,
    )


def reduce_scatter(tensor: Any, ranks: Sequence[int], name: str, op: str = _SUM) -> tf.Tensor:
    """Each rank's part of the sum (or average): the first dimension is dealt out in equal parts.

    Args and errors as of `all_reduce`; the set has to divide the first dimension. The part is that
    of the rank's place in `ranks`. The gradient is that of an `all_gather`.
    """
    _check_op(op)
    scale = _scale(op, ranks)
    return _collective(
        "reduce_scatter",
        tensor,
        ranks,
        name,
        lambda incoming, again: all_gather(incoming, ranks, again) * scale,
        reduction=op,
    )


def all_gather(tensor: Any, ranks: Sequence[int], name: str) -> tf.Tensor:
    """The tensors of a set of ranks, one behind the other along the first dimension.

    Args and errors as of `all_reduce`; of any dtype of numbers, or bool, and of one dimension at
    least. The gradient is that of a `reduce_scatter`.
    """
    return _collective(
        "all_gather",
        tensor,
        ranks,
        name,
        lambda incoming, again: reduce_scatter(incoming, ranks, again),
    )


def broadcast(tensor: Any, root: int, ranks: Sequence[int], name: str) -> tf.Tensor:
    """The tensor of one rank of a set, on every rank of it.

    Args and errors as of `all_reduce`; of any dtype of numbers, or bool. The others' tensors only
    say dtype and shape. The gradient is that of a `reduce` to the root.

    Args:
        tensor: of the same dtype and shape on every rank of the set.
        root: whose it is.
        ranks: the set.
        name: the same on every rank of it.
    """
    return _collective(
        "broadcast",
        tensor,
        ranks,
        name,
        lambda incoming, again: reduce(incoming, root, ranks, again),
        root=root,
    )


def reduce(tensor: Any, root: int, ranks: Sequence[int], name: str, op: str = _SUM) -> tf.Tensor:
    """The sum (or average) over a set of ranks, on one of them; zeros on the others.

    Args and errors as of `all_reduce`. The gradient is that of a `broadcast` from the root.

    Args:
        tensor: of a floating dtype, of the same shape on every rank of the set.
        root: who has the sum.
        ranks: the set, in the order of summation.
        name: the same on every rank of it.
        op: "sum" or "average".
    """
    _check_op(op)
    scale = _scale(op, ranks)
    return _collective(
        "reduce",
        tensor,
        ranks,
        name,
        lambda incoming, again: broadcast(incoming, root, ranks, again) * scale,
        root=root,
        reduction=op,
    )


def _collective(
    kind: str,
    tensor: Any,
    ranks: Sequence[int],
    name: str,
    differentiate: Callable[[tf.Tensor, str], tf.Tensor],
    root: int | None = None,
    reduction: str = _SUM,
) -> tf.Tensor:
    """One of a set of ranks. `differentiate` gets the incoming gradient, and a name for its own."""
    members = _members(ranks)
    if root is not None and root not in members:
        raise ValueError(f"root must be one of the ranks {_few(members)}, got {root!r}")
    _check_name(name)
    tensor = tf.convert_to_tensor(tensor)
    if kind not in ("all_gather", "broadcast") and not tensor.dtype.is_floating:
        raise ValueError(f"{kind} of {name!r}: dtype must be floating, got {tensor.dtype.name}")

    def start(value: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
        result = collective_ops.collective(kind, value, members, name, root, reduction)

        def gradient(incoming: tf.Tensor) -> tf.Tensor:
            return differentiate(incoming, f"{name}/gradient")

        return result, gradient

    return _differentiable(start, tensor)


def _differentiable(start: Callable[..., Any], tensor: tf.Tensor) -> tf.Tensor:
    if not tensor.dtype.is_floating:
        return start(tensor)[0]
    return tf.custom_gradient(start)(tensor)


@STATE.value()
def _anchor() -> tf.Variable:
    """Returns the variable on which received tensors depend for tapes, which watch variables."""
    with tf.init_scope():
        return tf.Variable(0.0, name="tf_libra_received")


def _shape(shape: Any) -> tf.Tensor:
    if not tf.is_tensor(shape):
        known = tf.TensorShape(shape)
        if not known.is_fully_defined():
            raise ValueError(f"shape must be fully known, got {known}; or a tensor of it")
        shape = known.as_list()
    return tf.cast(shape, tf.int64)


def _peer(what: str, rank: int) -> int:
    engine = engine_lib.running()
    bad = not isinstance(rank, int) or isinstance(rank, bool) or rank < 0
    if bad or (engine is not None and (rank >= engine.world_size or rank == engine.rank)):
        of = "" if engine is None else f" below {engine.world_size} other than {engine.rank}"
        raise ValueError(f"{what} must be a rank{of}, got {rank!r}")
    return rank


def _members(ranks: Sequence[int]) -> tuple[int, ...]:
    members = tuple(ranks)
    good = all(isinstance(rank, int) and not isinstance(rank, bool) for rank in members)
    if not members or not good or len(set(members)) < len(members) or min(members) < 0:
        raise ValueError(f"ranks must be different ranks, one at least, got {_few(ranks)}")
    engine = engine_lib.running()
    if engine is not None and (engine.rank not in members or max(members) >= engine.world_size):
        raise ValueError(
            f"ranks must be below {engine.world_size}, and {engine.rank} one of them, got"
            f" {_few(ranks)}"
        )
    return members


def _few(ranks: Sequence[int]) -> str:
    """The ranks as text; of a large set its beginning."""
    shown = repr(ranks)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}... ({len(ranks)} ranks)"


def _check_name(name: str) -> None:
    if not isinstance(name, str) or not name or "\0" in name:
        raise ValueError(f"name must be a text that is not empty, got {name!r}")


def _scale(op: str, ranks: Sequence[int]) -> float:
    """Returns the factor by which a sum over the ranks is multiplied."""
    return 1.0 if op == _SUM else 1.0 / len(ranks)


def _check_op(op: str) -> None:
    if op not in (_SUM, _AVERAGE):
        raise ValueError(f"op must be {_SUM!r} or {_AVERAGE!r}, got {op!r}")
