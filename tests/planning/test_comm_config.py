"""Settings of all-reduces: what they may be, and that documents are read as they were written."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_libra.internal.validation import MAX_INT32
from tf_libra.planning.comm_config import CommConfig

numbers = st.integers(1, MAX_INT32)


@given(numbers, numbers, numbers)
def test_fields_round_trip(unit_bytes: int, num_streams: int, num_threads: int) -> None:
    setting = CommConfig(unit_bytes, num_streams, num_threads)
    assert (
        CommConfig.from_fields("setting", json.loads(json.dumps(dataclasses.asdict(setting))))
        == setting
    )
    assert setting.num_lanes == num_streams * num_threads


@pytest.mark.parametrize(
    ("field", "most"),
    [("unit_bytes", None), ("num_streams", MAX_INT32), ("num_threads", MAX_INT32)],
)
def test_number_out_of_range_is_named(field: str, most: int | None) -> None:
    fields = {"unit_bytes": 1, "num_streams": 1, "num_threads": 1}
    assert CommConfig(**fields)
    wrong = [0, -1, 1.5, True, None, *([] if most is None else [most + 1])]
    for value in wrong:
        with pytest.raises(ValueError, match=rf"{field} must be .*{value}"):
            CommConfig.from_fields("setting", fields | {field: value})
    if most is not None:
        assert CommConfig(**fields | {field: most})


@pytest.mark.parametrize("document", [{"unit_bytes": 1}, [1, 1, 1], None])
def test_wrong_document_is_rejected(document: object) -> None:
    with pytest.raises(ValueError, match="setting"):
        CommConfig.from_fields("setting", document)


def test_describe_names_units_streams_and_threads() -> None:
    text = CommConfig(4 << 20, 3, 2).describe()
    assert text == "units of 4.194 MB on 3 streams of 2 threads"
