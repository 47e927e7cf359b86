"""The model of processors whose cores computation and lanes share."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_libra.cost_model import ContentionModel, ProcessorModel, cost_model_from_json

models = st.builds(
    ProcessorModel,
    num_workers=st.integers(2, 64),
    startup=st.floats(0, 1e-2),
    work_per_byte=st.floats(1e-11, 1e-7),
    wire_per_byte=st.floats(0, 1e-7),
    lane_weight=st.floats(0.1, 10),
    lane_gap=st.floats(0, 2),
    hops=st.sampled_from([2, 1, 3, None]),
    workers_per_host=st.sampled_from([None, 1, 2, 4, 8]),
)
threads = st.integers(1, 64)


@given(models, threads, st.integers(1, 10**9))
def test_computation_loses_the_work_of_lanes(
    model: ProcessorModel, num_threads: int, num_bytes: int
) -> None:
    """Computation loses the work of an all-reduce that is concurrent with it."""
    seconds = float(model.overlapped_seconds(num_bytes, num_threads))
    lost = seconds * (1 - float(model.compute_rate(num_threads)))
    work = model.work_per_byte * float(model.transmitted_bytes(num_bytes))
    assert lost == pytest.approx(work, rel=1e-6)


@given(models, threads, st.integers(1, 10**9))
def test_assumptions_2_and_3_hold(model: ProcessorModel, num_threads: int, num_bytes: int) -> None:
    overlapped = float(model.overlapped_all_reduce(num_bytes, num_threads))
    exclusive = float(model.exclusive_all_reduce(num_bytes, num_threads))
    rate = float(model.compute_rate(num_threads))
    assert 0 < rate < 1
    assert overlapped >= exclusive
    one_after_the_other = overlapped * rate + exclusive
    assert overlapped <= one_after_the_other * (1 + 1e-9)


@given(models, threads)
def test_more_lanes_are_never_slower(model: ProcessorModel, num_threads: int) -> None:
    fewer, more = np.array([num_threads, num_threads + 1])
    assert model.overlapped_rate(more) >= model.overlapped_rate(fewer) * (1 - 1e-12)
    assert model.exclusive_rate(more) >= model.exclusive_rate(fewer) * (1 - 1e-12)


# Milliseconds of an all-reduce of 16 MiB with 1, 2 and 4 threads, alone and next to a computing
# thread on the same core (docs/benchmarks.md, "Lanes and Gloo").
MEASURED = {
    "memory": ((1.10, 1.16, 1.61), (3.31, 2.96, 3.40)),
    "unix": ((3.51, 3.60, 3.45), (9.96, 8.26, 6.67)),
    "tcp": ((6.21, 6.08, 6.84), (13.17, 11.07, 10.46)),
}


@pytest.mark.parametrize(("alone", "overlapped"), MEASURED.values(), ids=MEASURED)
def test_one_weight_explains_measured_overlaps_with_several_threads(
    alone: tuple[float, ...], overlapped: tuple[float, ...]
) -> None:
    """The weight that one lane has next to computation predicts those of two and four lanes."""
    weight = alone[0] / (overlapped[0] - alone[0])
    for r, exclusive, measured in zip((1, 2, 4), alone, overlapped, strict=True):
        model = ProcessorModel(2, 0.0, work_per_byte=exclusive, lane_weight=weight)
        assert float(model.overlapped_seconds(1, r)) == pytest.approx(measured, rel=0.06)


@given(models, threads)
def test_wire_and_cores_overlap_in_part(model: ProcessorModel, num_threads: int) -> None:
    """During computation, a byte takes longer than on the wire or on the cores, up to their sum."""
    seconds = 1 / float(model.overlapped_rate(num_threads))
    lanes = model.lane_weight * num_threads**0.5
    wire = model.wire_per_byte * (1 + model.lane_gap / num_threads)
    cores = model.work_per_byte * (1 + lanes) / lanes
    assert max(wire, cores) * (1 - 1e-9) <= seconds <= (wire + cores) * (1 + 1e-9)
    without = replace(model, wire_per_byte=0.0)
    assert 1 / float(without.overlapped_rate(num_threads)) == pytest.approx(cores)
    equal = replace(model, wire_per_byte=cores, lane_gap=0.0)
    assert 1 / float(equal.overlapped_rate(num_threads)) == pytest.approx(2**0.5 * cores)


def test_overlap_hides_only_waiting_for_the_wire() -> None:
    slow_wire = ProcessorModel(2, 0.0, work_per_byte=1e-9, wire_per_byte=8e-9)
    assert float(slow_wire.compute_rate(1)) == pytest.approx(1 - 1 / 8, rel=0.01)
    assert float(slow_wire.overlapped_seconds(10**6, 1)) == pytest.approx(8e-3, rel=0.04)
    no_wire = ProcessorModel(2, 0.0, work_per_byte=1e-9)
    assert float(no_wire.compute_rate(1)) == pytest.approx(1 / 2)
    assert float(no_wire.overlapped_seconds(10**6, 1)) == pytest.approx(2e-3)
    assert float(no_wire.exclusive_seconds(10**6, 1)) == pytest.approx(1e-3)


@pytest.mark.parametrize("factor", [0.01, 0.5, 1.0, 4.0])
def test_links_may_be_slower_than_shared_memory(factor: float) -> None:
    """On one host, lanes send as fast as their cores copy."""
    model = ProcessorModel(2, 1e-4, 1e-9, wire_per_byte=0.0)
    slower = model.with_link_rate(factor)
    assert slower.work_per_byte == model.work_per_byte
    rate = float(slower.exclusive_rate(1)) / float(model.exclusive_rate(1))
    assert rate == pytest.approx(min(factor, 1.0))


@given(models)
def test_json_round_trip_is_identical(model: ProcessorModel) -> None:
    assert cost_model_from_json(model.to_json()) == model


def test_numpy_numbers_are_accepted() -> None:
    model = ProcessorModel(2, 1e-4, 1e-9, hops=np.int64(3), workers_per_host=np.int64(4))
    assert cost_model_from_json(model.to_json()) == model


def test_json_of_contention_model_is_read_as_such() -> None:
    model = ContentionModel(4, 1e-5, (1.0, 0.1), (1e9, 0.0, 0.0), (2e9, 0.0, 0.0))
    assert cost_model_from_json(model.to_json()) == model


@pytest.mark.parametrize("document", ["", "[]", "{", None, json.dumps({"format": "plan"})])
def test_text_without_cost_model_is_named(document: object) -> None:
    with pytest.raises(ValueError, match="cost model"):
        cost_model_from_json(document)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_workers", 0),
        ("startup", -1e-3),
        ("work_per_byte", 0.0),
        ("wire_per_byte", float("nan")),
        ("lane_weight", 0.0),
        ("lane_gap", -0.1),
        ("hops", 0),
        ("workers_per_host", 0.5),
    ],
)
def test_wrong_parameter_is_named(field: str, value: float) -> None:
    good: dict[str, Any] = {"num_workers": 2, "startup": 1e-4, "work_per_byte": 1e-9}
    with pytest.raises(ValueError, match=field):
        ProcessorModel(**(good | {field: value}))


def test_threads_are_positive() -> None:
    with pytest.raises(ValueError, match="num_threads must be positive"):
        ProcessorModel(2, 0.0, 1e-9).compute_rate([1, 0])


def test_single_worker_communicates_in_zero_time() -> None:
    alone = ProcessorModel(4, 1e-3, 1e-9, 2e-9).with_workers(1)
    assert float(alone.overlapped_all_reduce(10**6, 2)) == 0
    assert float(alone.exclusive_all_reduce(10**6, 2)) == 0


@given(models, threads, st.integers(1, 10**9))
def test_contention_free_takes_exclusive_time(
    model: ProcessorModel, num_threads: int, num_bytes: int
) -> None:
    ideal = model.contention_free()
    alone = float(ideal.exclusive_all_reduce(num_bytes, num_threads))
    assert float(ideal.compute_rate(num_threads)) == 1
    assert float(ideal.overlapped_all_reduce(num_bytes, num_threads)) == pytest.approx(alone)
    assert alone <= float(model.exclusive_all_reduce(num_bytes, num_threads)) * (1 + 1e-9)


@given(models, st.integers(1, 64))
def test_startup_is_proportional_to_hops(model: ProcessorModel, workers: int) -> None:
    rate = (1e9, 0.0, 0.0)
    other = ContentionModel(
        model.num_workers,
        model.startup / 2,
        (1.0, 0.0),
        rate,
        rate,
        hops=model.hops,
        workers_per_host=model.workers_per_host,
    )
    for converted, same in (
        (model, other),
        (model.with_workers(workers), other.with_workers(workers)),
        (model.with_workers(workers).contention_free(), other.with_workers(workers)),
        (model.with_workers(1).with_workers(model.num_workers), other),
    ):
        assert converted.startup_seconds == pytest.approx(same.startup_seconds)
        assert converted.exclusive_startup_seconds == pytest.approx(same.startup_seconds)


def test_two_levels_double_the_startup() -> None:
    grid = ProcessorModel(4, 2e-4, 1e-9, workers_per_host=4)
    seconds = [grid.with_workers(n).startup_seconds for n in (1, 2, 4, 6, 8, 16)]
    # Six do not fill two hosts: they make one level.
    assert seconds == pytest.approx([0, 2e-4, 2e-4, 2e-4, 4e-4, 4e-4])
    square = ProcessorModel(4, 2e-4, 1e-9, workers_per_host=1)
    seconds = [square.with_workers(n).startup_seconds for n in (1, 8, 15, 16, 17)]
    assert seconds == pytest.approx([0, 2e-4, 2e-4, 4e-4, 2e-4])
    ring = ProcessorModel(4, 2e-4, 1e-9, hops=None)
    assert ring.with_workers(8).startup_seconds == pytest.approx(14 * 1e-4)


def test_document_without_hops_has_one_level_of_lanes() -> None:
    document = json.loads(ProcessorModel(4, 1e-3, 1e-9).to_json())
    assert document.keys() & {"hops", "workers_per_host"} == set()
    assert cost_model_from_json(json.dumps(document)).with_workers(9).startup_seconds == 1e-3


def test_lane_weight_without_computation_is_rejected() -> None:
    model = ProcessorModel(2, 1e-4, 2.0**-30, lane_weight=1e17)
    with pytest.raises(ValueError, match=r"compute: 1.*u/p.*= 2,"):
        model.compute_rate(2)
