"""Cache under concurrent requests."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tf_libra.reporting.tensorboard.cache import Cache


def test_concurrent_requests_share_one_computation() -> None:
    cache: Cache[object] = Cache(8)
    begun, go_on = threading.Event(), threading.Event()
    computed = []

    def compute() -> object:
        begun.set()
        assert go_on.wait(60)
        computed.append(object())
        return computed[-1]

    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(cache.get, "key", compute)
        assert begun.wait(60)
        later = [pool.submit(cache.get, "key", compute) for _ in range(3)]
        # A query of another key does not wait.
        assert cache.get("other", lambda: 7) == 7
        go_on.set()
        assert {id(future.result(60)) for future in (first, *later)} == {id(computed[0])}
    assert len(computed) == 1


def test_error_is_raised_in_all_requests_and_not_cached() -> None:
    cache: Cache[int] = Cache(8)
    begun, go_on = threading.Event(), threading.Event()

    def fail() -> int:
        begun.set()
        assert go_on.wait(60)
        raise ValueError("no such rate")

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cache.get, 1, fail)
        assert begun.wait(60)
        second = pool.submit(cache.get, 1, fail)
        go_on.set()
        for future in (first, second):
            with pytest.raises(ValueError, match="no such rate"):
                future.result(60)
    assert cache.get(1, lambda: 5) == 5


def test_least_recently_used_value_is_evicted() -> None:
    cache: Cache[str] = Cache(2)
    for key in ("a", "b", "a", "c"):
        cache.get(key, lambda key=key: key)
    assert [cache.get(key, lambda: "anew") for key in ("a", "c", "b")] == ["a", "c", "anew"]
