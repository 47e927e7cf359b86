"""Cache of answers with one computation per key, also for concurrent requests.

A page repeats its requests whenever it is drawn, and TensorBoard serves each request in its own
thread: two plans for thousands of tensors would each take twice as long.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

_Value = TypeVar("_Value")


class Cache(Generic[_Value]):
    """Values by key, with eviction of the least recently used."""

    def __init__(self, most: int) -> None:
        """Creates an empty cache of at most `most` values."""
        self._most = most
        self._values: OrderedDict[Hashable, Future[_Value]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, compute: Callable[[], _Value]) -> _Value:
        """Returns the value of a key, computed by the first request.

        Concurrent requests wait for it. An error is raised in all of them and not cached.
        """
        with self._lock:
            found = self._values.get(key)
            if found is not None:
                self._values.move_to_end(key)
            else:
                mine: Future[_Value] = Future()
                self._values[key] = mine
                while len(self._values) > self._most:
                    self._values.popitem(last=False)
        if found is not None:
            return found.result()
        try:
            mine.set_result(compute())
        except BaseException as error:
            with self._lock:
                if self._values.get(key) is mine:
                    del self._values[key]
            mine.set_exception(error)
            raise
        return mine.result()
