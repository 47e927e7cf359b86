"""Reading what the engine says of its all-reduces."""

import json
from typing import Any

import pytest

from tf_libra.specs.telemetry import (
    AllReduceRecord,
    gathers_among,
    parse_records,
    records_of_step,
)


def row(step: int, sequence: int, operation: str = "7") -> dict[str, Any]:
    return {
        "operation": operation,
        "step": step,
        "sequence": sequence,
        "num_bytes": 1 << 40,
        "enqueued_ns": 1_700_000_000_000_000_001,
        "started_ns": 1_700_000_000_000_000_101,
        "first_byte_ns": 1_700_000_000_000_000_201,
        "finished_ns": 1_700_000_000_000_001_101,
    }


OPERATIONS = {
    "7": {"plan": "abc", "group": 1, "num_threads": 2, "tensor_names": ["w/\u00fc", 'b"\\']},
    "8": {"plan": "", "group": -1, "num_threads": 1, "tensor_names": ["v"]},
    "9": {"plan": "abc", "group": -1, "num_threads": 1, "is_gather": True, "tensor_names": ["v"]},
}


def parsed(*rows: dict[str, Any]) -> tuple[AllReduceRecord, ...]:
    return parse_records(json.dumps({"operations": OPERATIONS, "records": rows}))


def test_record_times_are_exact_nanoseconds() -> None:
    [record] = parsed(row(3, 12))
    assert record == AllReduceRecord(
        step=3,
        sequence=12,
        plan="abc",
        group=1,
        num_threads=2,
        num_bytes=1 << 40,
        enqueued_ns=1_700_000_000_000_000_001,
        started_ns=1_700_000_000_000_000_101,
        first_byte_ns=1_700_000_000_000_000_201,
        finished_ns=1_700_000_000_000_001_101,
        tensor_names=("w/\u00fc", 'b"\\'),
    )
    assert record.seconds == pytest.approx(1e-6)


def test_sent_share_is_of_what_might_have_been_left_out() -> None:
    [sparse] = parsed(row(3, 12) | {"sent_bytes": 10, "omitted_bytes": 30})
    assert sparse.sent_share == 0.25
    [dense] = parsed(row(3, 12) | {"sent_bytes": 10, "omitted_bytes": 0})
    [shared_memory] = parsed(row(3, 12))
    assert dense.sent_share == shared_memory.sent_share == 1.0


def test_records_share_operations() -> None:
    records = parsed(row(1, 0), row(1, 1, "8"), row(2, 2))
    assert [record.plan for record in records] == ["abc", "", "abc"]
    assert records[1].tensor_names == ("v",)


def test_empty_telemetry_has_no_records() -> None:
    assert parsed() == ()


def test_gathers_are_none_of_the_all_reduces_of_a_step() -> None:
    records = parsed(row(2, 5, "9"), row(2, 4), row(1, 3, "9"))
    assert [record.sequence for record in records_of_step(records, 2)] == [4]
    assert [record.sequence for record in gathers_among(records)] == [3, 5]


def test_records_of_step_are_selected_and_ordered() -> None:
    records = parsed(row(2, 5), row(1, 4), row(2, 3))
    assert [record.sequence for record in records_of_step(records, 2)] == [3, 5]
    assert records_of_step(records, 9) == ()
