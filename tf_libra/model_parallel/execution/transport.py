"""Point-to-point transfers and all-reduces between the ranks of a step in stages."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import tensorflow as tf

from tf_libra.backends import collective_ops
from tf_libra.coordination import control_plane
from tf_libra.runtime.step_hooks import active_hooks


class Transport(Protocol):
    """Carries tensors; names distinguish the tensors in flight between two ranks."""

    @property
    def rank(self) -> int:
        """The rank of this process."""
        ...

    @property
    def waits_in_functions(self) -> bool:
        """True if functions that TensorFlow runs may wait for other ranks."""
        ...

    def send(self, tensor: Any, to_rank: int, name: str) -> None:
        """Sends without waiting for the other rank to receive."""
        ...

    def receive(self, dtype: Any, shape: Sequence[int], from_rank: int, name: str) -> Any:
        """Waits for a tensor until a deadline and returns it.

        Raises:
            EngineError: a rank is gone or late; the message names the waiting rank and its peer.
        """
        ...

    def start_receive(
        self, dtype: Any, shape: Sequence[int], from_rank: int, name: str
    ) -> Callable[[], Any]:
        """Starts to receive a tensor, and returns a function that waits for it as `receive`."""
        ...

    def all_reduce(self, tensor: Any, ranks: Sequence[int], name: str) -> Any:
        """Returns the sum over ranks, all of which call this; raises as `receive` does."""
        ...


def broadcast_tensor(
    transport: Transport,
    tensor: Any,
    root: int,
    num_ranks: int,
    dtype: Any,
    shape: Sequence[int],
    name: str,
) -> Any:
    """Returns a tensor of one rank on all ranks, all of which call this.

    Args:
        transport: transport between the ranks.
        tensor: the tensor on the root; ignored on other ranks.
        root: the rank that sends.
        num_ranks: number of ranks.
        dtype: dtype of the tensor.
        shape: shape of the tensor.
        name: name of the tensor.
    """
    message = f"broadcast {name}"
    if transport.rank != root:
        return transport.receive(dtype, shape, root, message)
    return _send_to_others(transport, [tensor] * num_ranks, message)


def scatter_tensor(
    transport: Transport,
    tensor: Any,
    root: int,
    num_ranks: int,
    spec: tf.TensorSpec,
    axis: int,
    name: str,
) -> Any:
    """Returns this rank's equal part of a tensor of one rank; all ranks call this.

    Args:
        transport: transport between the ranks.
        tensor: the tensor on the root; ignored on other ranks.
        root: the rank that sends.
        num_ranks: number of ranks.
        spec: dtype and shape of a part.
        axis: the axis along which ranks have parts.
        name: name of the tensor.
    """
    message = f"part of {name}"
    if transport.rank != root:
        return transport.receive(spec.dtype, spec.shape, root, message)
    return _send_to_others(transport, tf.split(tensor, num_ranks, axis), message)


def _send_to_others(transport: Transport, tensors: Sequence[Any], message: str) -> Any:
    """Sends a tensor to each other rank, and returns this rank's own one, by rank."""
    for rank, tensor in enumerate(tensors):
        if rank != transport.rank:
            transport.send(tensor, rank, message)
    return tensors[transport.rank]


def barrier(transport: Transport, num_ranks: int, name: str) -> list[Any]:
    """Returns when all ranks have called this: what they have sent, so that a function waits."""
    done = tf.zeros([])
    others = [rank for rank in range(num_ranks) if rank != transport.rank]
    waits = [transport.start_receive(done.dtype, done.shape, rank, name) for rank in others]
    _send_to_others(transport, [done] * num_ranks, name)
    return [wait() for wait in waits]


class NotReceivedError(control_plane.EngineError):
    """Error of a rank that had no memory for a tensor, which its peer sends nevertheless."""


@contextlib.contextmanager
def _named(
    what: str, kind: type[control_plane.EngineError] = control_plane.EngineError
) -> Iterator[None]:
    """Names the transfer in errors of this rank alone, which end the job.

    Other ranks may wait for its next transfers. Ranks that are lost, and sides that differ, are
    named already.

    Args:
        what: the rank, the transfer and its peer.
        kind: type of the error.

    Raises:
        EngineError: this rank alone has failed.
    """
    try:
        yield
    except tf.errors.FailedPreconditionError:
        raise
    except (tf.errors.OpError, MemoryError) as error:
        if control_plane.lost(error):
            raise
        text = error.message if isinstance(error, tf.errors.OpError) else str(error)
        raise kind(f"{what}: {type(error).__name__}: {text}") from error


class LanesTransport:
    """Transport over lanes, without gradients: a step in stages computes its own."""

    def __init__(
        self,
        rank: int,
        function: str,
        waiting: Callable[[str], contextlib.AbstractContextManager[None]],
    ) -> None:
        """Transfers nothing yet.

        Args:
            rank: rank of this process.
            function: unique identity of the training function.
            waiting: returns a context to enter while waiting, by name of the transfer, which is
                the same in every step.
        """
        self.rank = rank
        self._function = function
        self._waiting = waiting
        self._shapes: dict[tuple[int, ...], Any] = {}  # as tensors, which ops take without a copy

    @property
    def waits_in_functions(self) -> bool:
        """See `Transport`. Hooks act around waits in Python."""
        return not active_hooks()

    def send(self, tensor: Any, to_rank: int, name: str) -> None:
        """See `Transport`."""
        full_name = f"{self._function}: {name}"
        with _named(f"rank {self.rank} cannot send {full_name} to rank {to_rank}"):
            if tensor.dtype.is_complex:  # lanes carry pairs of real numbers
                tensor = tf.bitcast(tensor, tensor.dtype.real_dtype)
            collective_ops.send(tensor, to_rank, full_name)

    def receive(self, dtype: Any, shape: Sequence[int], from_rank: int, name: str) -> Any:
        """See `Transport`."""
        return self.start_receive(dtype, shape, from_rank, name)()

    def start_receive(
        self, dtype: Any, shape: Sequence[int], from_rank: int, name: str
    ) -> Callable[[], Any]:
        """See `Transport`."""
        full_name = f"{self._function}: {name}"
        is_complex = tf.as_dtype(dtype).is_complex
        wire_shape = (*shape, 2) if is_complex else shape
        wire_dtype = tf.as_dtype(dtype).real_dtype if is_complex else dtype
        what = f"rank {self.rank} cannot receive {full_name} from rank {from_rank}"
        with _named(what, NotReceivedError):
            size = self._as_tensor(wire_shape)
            pending = collective_ops.receive_start(wire_dtype, size, from_rank, full_name)

        def wait() -> Any:
            with _named(what):
                with self._waiting(f"{full_name} from {from_rank}"):
                    tensor = collective_ops.received(pending)
                return tf.bitcast(tensor, dtype) if is_complex else tensor

        return wait

    def _as_tensor(self, shape: Sequence[int]) -> Any:
        """Returns a shape as a tensor, made once: the same ones come back in every step."""
        sizes = tuple(shape)
        if sizes not in self._shapes:
            with tf.init_scope(), tf.device("/cpu:0"):
                self._shapes[sizes] = tf.constant(sizes, tf.int64, [len(sizes)])
        return self._shapes[sizes]

    def all_reduce(self, tensor: Any, ranks: Sequence[int], name: str) -> Any:
        """See `Transport`."""
        full_name = f"{self._function}: {name}"
        with _named(f"rank {self.rank} cannot all-reduce {full_name} with ranks {[*ranks]}"):
            return collective_ops.collective("all_reduce", tensor, ranks, full_name)
