"""Point-to-point messages and collectives among sets of ranks, as functions of TensorFlow.

They run eagerly and in a `tf.function`, on connections between the participating ranks; other ranks
are not involved. A send never waits for its receiver. In a function, only ops that use a received
tensor wait for it, so two ranks may begin their sends, receives and collectives in different
orders. An eager call returns with its result: send first.

Calls of different ranks match by name. Two concurrent calls between the same ranks may have the
same name only if they begin in the same order on both sides. If the two sides differ, for example
in dtype or shape, both raise `tf.errors.FailedPreconditionError`, which names the difference. A
rank that is late, gone or aborting is an error, as for every all-reduce, and ends the engine.

Each function has a gradient. It is exchanged under the name with the suffix `/gradient`. So if one
rank differentiates a call, the ranks that took part in it must do the same.
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


def connect(timeout_seconds: float = 600.0, stall_warn_seconds: float = 30.0) -> None:
    """Connects all ranks, unless a step of an optimized function has done so.

    Args:
        timeout_seconds: maximum duration of any wait for another rank.
        stall_warn_seconds: duration of a wait after which a warning is logged.

    Raises:
        ValueError: the job is not known: a variable of the launcher is invalid, or `hvd.init()`
            has not been called in a script that imports Horovod.
        EngineError: a rank cannot be reached in time.
    """
    job = current_job.get_job()
    for running in control_plane.left_over(job.world(timeout_seconds)):
        running.close(control_plane.LEFT)
    if engine_lib.running() is None:
        terms = control_plane.ControlConfig(1, timeout_seconds, stall_warn_seconds)
        engine = lanes_bootstrap.connect_lanes(job, terms)
        atexit.register(lambda: engine.close(control_plane.why_program_ends()))


def send(tensor: Any, to_rank: int, name: str) -> tf.Tensor:
    """Sends a tensor to another rank without waiting; that rank must `receive` it.

    The gradient is received from `to_rank`, which has the loss. Differentiate the returned value in
    place of the loss: `tape.gradient(sent, variables)`.

    Args:
        tensor: tensor of numbers or bool.
        to_rank: receiving rank, other than this one.
        name: name of the message, equal on both sides.

    Returns:
        A scalar zero of the tensor's dtype, for the gradient.

    Raises:
        ValueError: the rank or the name is invalid.
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

    If a tape differentiates a value that depends on the tensor, with respect to anything, the
    gradient is sent back, and `from_rank` must differentiate its `send`. `tf.stop_gradient` of the
    tensor prevents that.

    Args:
        dtype: dtype of the sent tensor.
        shape: its shape, fully known or as a one-dimensional tensor.
        from_rank: sending rank, other than this one.
        name: name of the message, equal on both sides.
        anchor: scalar that a tape must watch for the gradient to be sent; None: every tape that
            watches variables.

    Raises:
        ValueError: the rank, the shape or the name is invalid.
        tf.errors.OpError: no engine runs, or it has failed.
    """
    from_rank = _peer("from_rank", from_rank)
    _check_name(name)
    dtype = tf.as_dtype(dtype)
    shape = _shape(shape)

    def start(known: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
        received = collective_ops.receive(dtype, shape, from_rank, name)

        def gradient(incoming: tf.Tensor) -> tf.Tensor:
            # Zero, available once the gradient was sent.
            return tf.cast(send(incoming, from_rank, f"{name}/gradient"), known.dtype)

        return received, gradient

    if not dtype.is_floating:
        return start(tf.zeros([]))[0]
    return _differentiable(start, tf.convert_to_tensor(_anchor() if anchor is None else anchor))


def all_reduce(tensor: Any, ranks: Sequence[int], name: str, op: str = _SUM) -> tf.Tensor:
    """Returns the sum (or average) over a set of ranks, with the same bits on each of them.

    Args:
        tensor: floating tensor, of the same shape on every rank of the set.
        ranks: the set in the order of summation, equal on every rank of it.
        name: name of the collective, equal on every rank of the set.
        op: "sum" or "average".

    Raises:
        ValueError: an argument is invalid.
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
    """Returns this rank's part of the sum (or average), by equal parts of the first dimension.

    Args and errors are those of `all_reduce`. The number of ranks must divide the first dimension.
    Parts follow the order of `ranks`. The gradient is an `all_gather`.
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
    """Returns the tensors of a set of ranks, concatenated along the first dimension.

    Args and errors are those of `all_reduce`, but tensors may be of any number type or bool, and
    need at least one dimension. The gradient is a `reduce_scatter`.
    """
    return _collective(
        "all_gather",
        tensor,
        ranks,
        name,
        lambda incoming, again: reduce_scatter(incoming, ranks, again),
    )


def broadcast(tensor: Any, root: int, ranks: Sequence[int], name: str) -> tf.Tensor:
    """Returns the tensor of one rank of a set, on every rank of it.

    Errors are those of `all_reduce`. The gradient is a `reduce` to the root.

    Args:
        tensor: tensor of numbers or bool; other ranks than the root give only dtype and shape.
        root: rank whose tensor is returned.
        ranks: the set.
        name: name of the collective, equal on every rank of the set.
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
    """Returns the sum (or average) over a set of ranks on one of them, and zeros on the others.

    Errors are those of `all_reduce`. The gradient is a `broadcast` from the root.

    Args:
        tensor: floating tensor, of the same shape on every rank of the set.
        root: rank that gets the sum.
        ranks: the set in the order of summation.
        name: name of the collective, equal on every rank of the set.
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
    """Runs a collective; `differentiate` gets the incoming gradient and a name for its exchange."""
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
        bound = "" if engine is None else f" below {engine.world_size} other than {engine.rank}"
        raise ValueError(f"{what} must be a rank{bound}, got {rank!r}")
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
    """Returns the ranks as text, shortened for a large set."""
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
