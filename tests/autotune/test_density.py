"""Densities from the bytes that all-reduces of whole groups have sent and left out."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_libra.autotune.density import densities, effective, omitted_cost
from tf_libra.specs.telemetry import AllReduceRecord

STARTUP, PER_BYTE = 2e-4, 1e-9


def record(
    names: Sequence[str], num_bytes: int, share: float, cost: float = 0.0, **changes: Any
) -> AllReduceRecord:
    """Returns an all-reduce that sent a share of its bytes; an omitted byte takes `cost` of one."""
    counted = num_bytes * (share + cost * (1 - share))
    values: dict[str, Any] = {
        "step": 0,
        "sequence": 0,
        "plan": "plan",
        "group": 0,
        "num_threads": 1,
        "num_bytes": num_bytes,
        "enqueued_ns": 0,
        "started_ns": 0,
        "first_byte_ns": 0,
        "finished_ns": round((STARTUP + PER_BYTE * counted) * 1e9),
        "tensor_names": tuple(names),
        "sent_bytes": round(num_bytes * share),
        "omitted_bytes": round(num_bytes * (1 - share)),
    }
    return AllReduceRecord(**values | changes)


@pytest.mark.parametrize("cost", [0.0, 0.1, 0.5, 1.0])
def test_cost_of_omitted_bytes_follows_from_times(cost: float) -> None:
    sizes, shares = (20_000, 300_000, 4_000_000, 50_000_000), (1.0, 0.02, 0.7, 0.01)
    records = [record("ab", size, share, cost) for size in sizes for share in shares]
    assert omitted_cost(records) == pytest.approx(cost, abs=0.01)
    noise = np.random.default_rng(0).uniform(0.9, 1.1, len(records))
    noisy = [
        record(
            r.tensor_names,
            r.num_bytes,
            r.sent_share,
            finished_ns=round(r.finished_ns * factor),
        )
        for r, factor in zip(records, noise, strict=True)
    ]
    assert omitted_cost(noisy) == pytest.approx(cost, abs=0.1)


# Milliseconds of all-reduces after backward, and the megabytes sent and omitted, of cnn5m on two
# hosts at 1 Gbit/s, 8.4 ns per byte, on a busy machine: small ones wait for up to 17 ms.
RECORDED = (
    *((32.7, 5.17, 3.27), (75.3, 7.58, 0.81), (16.0, 2.29, 0.08), (13.8, 1.70, 0.07)),
    *((0.3, 0.56, 0.0), (38.4, 5.17, 3.27), (64.0, 7.58, 0.81), (13.8, 2.29, 0.08)),
    *((8.5, 1.70, 0.07), (8.2, 0.56, 0.0), (3.8, 0.05, 0.0), (47.9, 4.87, 3.53)),
    *((56.8, 7.61, 0.78), (28.4, 3.32, 0.22), (17.4, 1.15, 0.0)),
)


def test_recorded_waits_of_small_all_reduces_are_no_cost_of_omitted_bytes() -> None:
    records = [
        record("a", round((sent + omitted) * 1e6), sent / (sent + omitted), finished_ns=ms * 1e6)
        for ms, sent, omitted in RECORDED
    ]
    assert omitted_cost(records) < 0.15


@pytest.mark.parametrize("share", [1.0, 0.0])
def test_all_bytes_count_if_all_or_none_were_sent(share: float) -> None:
    records = [record("a", size, share, 0.3) for size in (1000, 1_000_000, 5_000_000)]
    assert omitted_cost(records) == 1.0
    assert omitted_cost([]) == 1.0
    assert densities(records, 1.0) == {"a": 1.0}


def test_uniform_density_gives_the_same_relation_of_sizes() -> None:
    """The times do not determine the cost, and it makes no difference."""
    records = [record("a", size, 0.3, 0.2) for size in (1000, 1_000_000, 5_000_000)]
    cost = omitted_cost(records)
    assert 0 <= cost <= 1
    sizes = [effective(r, cost).num_bytes for r in records]
    assert sizes[2] / sizes[1] == pytest.approx(5, rel=1e-3)


def test_tensor_has_the_density_of_its_smallest_group() -> None:
    records = [
        record("abcd", 1000, 0.4),
        record("ab", 400, 0.1),
        record("cd", 600, 0.6),
        record("a", 100, 0.4),
        record("a", 100, 0.6),
    ]
    found = densities(records, 0.0)
    assert found == pytest.approx({"a": 0.5, "b": 0.1, "c": 0.6, "d": 0.6})
    assert densities(records, 0.5)["b"] == pytest.approx(0.55)
    assert densities([record("a", 0, 1.0)], 0.0) == {}


@given(st.integers(1, 10**9), st.floats(0, 1), st.floats(0, 1))
def test_bytes_that_count_lie_between_those_sent_and_all(
    size: int, share: float, cost: float
) -> None:
    whole = record("a", size, share)
    counted = effective(whole, cost).num_bytes
    assert max(whole.sent_share * size - 1, 1) <= counted <= size
    assert effective(whole, 1.0).num_bytes == size
    assert 0 < densities([whole], cost)["a"] <= 1
