"""Transport between ranks that are threads of one process."""

import functools
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


class Threads:
    """Queues between ranks that are threads of this process."""

    def __init__(self, num_ranks: int, timeout_seconds: float = 60.0) -> None:
        """Starts without messages."""
        self._lock = threading.Lock()
        self._queues: dict[tuple[int, int, str], queue.Queue[Any]] = {}
        self._timeout = timeout_seconds
        self.num_ranks = num_ranks

    def transport(self, rank: int) -> "ThreadTransport":
        """Returns the transport of one rank."""
        return ThreadTransport(self, rank)

    def put(self, source: int, target: int, name: str, value: Any) -> None:
        """Adds a value to the queue of a name between two ranks."""
        self._queue(source, target, name).put(value)

    def get(self, source: int, target: int, name: str) -> Any:
        """Waits for the next value of a queue, until a deadline."""
        try:
            return self._queue(source, target, name).get(timeout=self._timeout)
        except queue.Empty:
            message = f"rank {target} waited for {name!r} from rank {source}"
            raise TimeoutError(message) from None

    def _queue(self, source: int, target: int, name: str) -> "queue.Queue[Any]":
        with self._lock:
            return self._queues.setdefault((source, target, name), queue.Queue())


class ThreadTransport:
    """The transport of one thread; see `Transport`."""

    waits_in_functions = False  # all ranks share the threads that would wait

    def __init__(self, threads: Threads, rank: int) -> None:
        """Use `Threads.transport` instead."""
        self._threads = threads
        self.rank = rank

    def send(self, tensor: Any, to_rank: int, name: str) -> None:
        """Sends eagerly, or when the traced function runs."""
        assert to_rank != self.rank, name
        if tf.executing_eagerly():
            self._threads.put(self.rank, to_rank, name, tf.identity(tensor))
            return

        def put(value: Any) -> None:
            self._threads.put(self.rank, to_rank, name, tf.constant(value))

        tf.numpy_function(put, [tensor], [])

    def receive(self, dtype: Any, shape: Sequence[int], from_rank: int, name: str) -> Any:
        """Receives a tensor, which must have this dtype and shape."""
        tensor = self._threads.get(from_rank, self.rank, name)
        assert tensor.dtype == dtype and tuple(tensor.shape) == tuple(shape), (name, tensor, shape)
        return tensor

    def start_receive(
        self, dtype: Any, shape: Sequence[int], from_rank: int, name: str
    ) -> Callable[[], Any]:
        """Returns a function that receives the tensor."""
        return functools.partial(self.receive, dtype, shape, from_rank, name)

    def all_reduce(self, tensor: Any, ranks: Sequence[int], name: str) -> Any:
        """Returns the sum, added in the order of ranks."""
        if not tf.executing_eagerly():

            def reduce(value: Any) -> Any:
                return self.all_reduce(tf.constant(value), ranks, name).numpy()

            return tf.ensure_shape(tf.numpy_function(reduce, [tensor], tensor.dtype), tensor.shape)
        for rank in ranks:
            if rank != self.rank:
                self._threads.put(self.rank, rank, f"all-reduce {name}", tensor)
        parts = [
            tensor if rank == self.rank
            else self._threads.get(rank, self.rank, f"all-reduce {name}")
            for rank in ranks
        ]  # fmt: skip
        return tf.add_n(parts)
