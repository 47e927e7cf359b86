"""Tensors between ranks over lanes, as stages send them."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_libra.backends import collective_ops


class Lanes:
    """A transport over lanes. Nothing is differentiated: a step in stages has its own gradients."""

    def __init__(
        self,
        rank: int,
        function: str,
        waiting: Callable[[str], contextlib.AbstractContextManager[None]],
    ) -> None:
        """Sends nothing.

        Args:
            rank: this process.
            function: identity of the training function, which no other one has.
            waiting: entered for every wait for what has a name, the same in every step.
        """
        self.rank = rank
        self._function = function
        self._waiting = waiting

    def send(self, tensor: Any, to_rank: int, name: str) -> None:
        """See `Transport`."""
        sent = tf.bitcast(tensor, tensor.dtype.real_dtype) if tensor.dtype.is_complex else tensor
        collective_ops.send(sent, to_rank, f"{self._function}: {name}")

    def receive(self, dtype: Any, shape: Sequence[int], from_rank: int, name: str) -> Any:
        """See `Transport`."""
        return self.expect(dtype, shape, from_rank, name)()

    def expect(
        self, dtype: Any, shape: Sequence[int], from_rank: int, name: str
    ) -> Callable[[], Any]:
        """See `Transport`."""
        full_name = f"{self._function}: {name}"
        is_complex = tf.as_dtype(dtype).is_complex  # goes as pairs of real numbers
        sent_shape = (*shape, 2) if is_complex else shape
        sent_dtype = tf.as_dtype(dtype).real_dtype if is_complex else dtype
        begun = collective_ops.receive_start(sent_dtype, sent_shape, from_rank, full_name)

        def received() -> Any:
            with self._waiting(f"{full_name} from {from_rank}"):
                tensor = collective_ops.received(begun)
            return tf.bitcast(tensor, dtype) if is_complex else tensor

        return received

    def all_reduce(self, tensor: Any, ranks: Sequence[int], name: str) -> Any:
        """See `Transport`."""
        return collective_ops.collective("all_reduce", tensor, ranks, f"{self._function}: {name}")
