"""Answers that are worked out once, however many ask for them, and at the same time.

A page asks again whenever it is drawn again, and TensorBoard answers each question in a thread of
its own: two that plan for thousands of tensors would take twice as long, each.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

_Value = TypeVar("_Value")


class Cache(Generic[_Value]):
    """Values by key; those asked for the longest ago are forgotten first."""

    def __init__(self, most: int) -> None:
        """Keeps none yet, and never more than `most`."""
        self._most = most
        self._values: OrderedDict[Hashable, Future[_Value]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, compute: Callable[[], _Value]) -> _Value:
        """The value of a key: what `compute` returns to the first who asks.

        Who asks meanwhile waits for that. An error is raised to all of them, and not kept.
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
