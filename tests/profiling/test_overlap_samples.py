import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_libra.profiling.gradient_timing import StepProduction
from tf_libra.profiling.overlap_samples import (
    exclude_waiting,
    measured_timeline,
    overlap_samples,
    work_done,
)
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.telemetry import AllReduceRecord

START = 1_795_000_000_000_000_000  # nanoseconds since 1970: more than a float holds exactly
MS = 1_000_000


def production(*produced_ms: float, names: tuple[str, ...] | None = None) -> StepProduction:
    names = names or tuple("abcdefghij"[: len(produced_ms)])
    produced = START + np.array([round(t * MS) for t in produced_ms], dtype=np.int64)
    return StepProduction(names, produced, {}, START)


def profile(*compute_ms: float) -> BackwardProfile:
    return BackwardProfile.from_arrays(
        [8] * len(compute_ms), np.array(compute_ms) * 1e-3, list("abcdefghij"[: len(compute_ms)])
    )


def record(
    start_ms: float, end_ms: float, *names: str, group: int = 0, num_bytes: int = 1024
) -> AllReduceRecord:
    started_ns = START + round(start_ms * MS)
    return AllReduceRecord(
        step=7,
        sequence=0,
        plan="p",
        group=group,
        num_threads=2,
        num_bytes=num_bytes,
        enqueued_ns=started_ns,
        started_ns=started_ns,
        first_byte_ns=started_ns,
        finished_ns=START + round(end_ms * MS),
        tensor_names=names,
    )


def test_work_is_interpolated_between_productions() -> None:
    # Twice as slow after the first production.
    at = START + np.array([-5, 0, 1, 2, 4, 6, 10, 100]) * MS
    done = work_done(at, production(2, 6, 10), profile(2, 2, 2))
    np.testing.assert_allclose(done, [0, 0, 1e-3, 2e-3, 3e-3, 4e-3, 6e-3, 6e-3])


def test_work_follows_the_tensors_when_a_step_produces_them_in_another_order() -> None:
    done = work_done(START + np.array([3, 4, 5]) * MS, production(4, 3, 5), profile(1, 2, 4))
    np.testing.assert_allclose(done, [2e-3, 3e-3, 7e-3])


def test_work_of_tensors_produced_together_is_done_together() -> None:
    done = work_done(START + np.array([1, 2]) * MS, production(2, 2), profile(3, 1))
    np.testing.assert_allclose(done, [2e-3, 4e-3])


def test_work_rejects_a_profile_of_other_tensors() -> None:
    with pytest.raises(ValueError, match="differ in 1 tensors, first 'c'"):
        work_done(START, production(1, 2), profile(1, 1, 1))


def test_sample_is_split_at_the_last_production() -> None:
    sampled = overlap_samples([record(2, 12, "a")], production(2, 6, 10), profile(2, 2, 2))
    (sample,) = sampled.samples
    assert sample.compute_seconds == pytest.approx(4e-3)
    assert sample.overlap_seconds == pytest.approx(8e-3)
    assert sample.residual_seconds == pytest.approx(2e-3)
    assert (sample.num_bytes, sample.num_threads) == (1024, 2)
    assert (sample.step, sample.group, sample.plan) == (7, 0, "p")


@pytest.mark.parametrize("start_ms", [10, 9.99, 11])  # 9.99: ten microseconds of clock error
def test_sample_after_backward_is_exclusive(start_ms: float) -> None:
    sampled = overlap_samples([record(start_ms, 15, "a")], production(2, 10), profile(2, 2))
    (sample,) = sampled.samples
    assert sample.compute_seconds == sample.overlap_seconds == 0
    assert sample.residual_seconds == pytest.approx((15 - start_ms) * 1e-3)


def test_unusable_samples_are_dropped_with_reasons() -> None:
    records = [
        record(3, 4, "a", group=0, num_bytes=0),
        record(4, 4, "a", group=1),
        record(-3, 4, "a", group=2),
        record(4, 5, "zz", group=3),
        record(5, 6, "a", "b", group=4),
        record(7, 8, "b", group=5),
    ]
    sampled = overlap_samples(records, production(2, 6, 10), profile(2, 2, 2))
    assert [sample.group for sample in sampled.samples] == [5]
    reasons = dict(sampled.dropped)
    assert reasons.keys() == {0, 1, 2, 3, 4}
    assert reasons[0] == "no bytes"
    assert reasons[1] == "took no time"
    assert "not of this step" in reasons[2]
    assert "'zz'" in reasons[3]
    assert "1 ms before its 'b'" in reasons[4]


def test_waiting_for_other_ranks_is_excluded() -> None:
    def arrived(start_ms: float, first_ms: float, group: int = 0) -> AllReduceRecord:
        first_ns = START + round(first_ms * MS)
        return replace(record(start_ms, start_ms + 20, group=group), first_byte_ns=first_ns)

    records = [
        arrived(1, 3),  # the quickest: two milliseconds
        arrived(1, 8),
        arrived(1, 8, group=1),  # a group in which this rank is always ahead
        arrived(5, -5),  # no byte was awaited
    ]
    moved = exclude_waiting(records)
    assert [(r.started_ns - START) / MS for r in moved] == [1, 6, 6, 5]
    assert [replace(m, started_ns=r.started_ns) for m, r in zip(moved, records, strict=True)] == (
        records
    )


def test_timeline_is_relative_to_the_start_of_backward() -> None:
    timeline = measured_timeline(
        [record(7, 13, "b", "c", group=1), record(2.5, 5, "a", group=0)], production(2, 6, 7)
    )
    assert [group.group for group in timeline.groups] == [0, 1]
    assert [group.ready_seconds for group in timeline.groups] == pytest.approx([2e-3, 7e-3])
    assert [group.start_seconds for group in timeline.groups] == pytest.approx([2.5e-3, 7e-3])
    assert [group.end_seconds for group in timeline.groups] == pytest.approx([5e-3, 13e-3])
    assert timeline.compute_seconds == pytest.approx(7e-3)
    assert timeline.backward_seconds == pytest.approx(13e-3)


def test_timeline_ends_with_computation_where_communication_is_done_earlier() -> None:
    timeline = measured_timeline([record(2, 3, "a")], production(2, 6))
    assert timeline.backward_seconds == timeline.compute_seconds == pytest.approx(6e-3)


def test_timeline_rejects_unknown_tensors() -> None:
    with pytest.raises(ValueError, match=r"group 0.* 'zz'"):
        measured_timeline([record(2, 3, "zz")], production(2, 6))


milliseconds = st.floats(0, 100)
steps = st.lists(st.tuples(milliseconds, milliseconds), min_size=1, max_size=10).map(
    lambda pairs: (production(*(p for p, _ in pairs)), profile(*(c for _, c in pairs)))
)


@given(steps, st.lists(st.floats(-10, 120), min_size=1, max_size=20))
def test_work_never_falls_and_ends_at_the_sum(step, times_ms) -> None:
    produced, measured = step
    at = START + np.array(sorted([*times_ms, 1000]) * np.array(MS), dtype=np.int64)
    done = work_done(at, produced, measured)
    total = measured.compute_seconds.sum()
    assert (np.diff(done) >= -1e-12).all()
    assert (done >= 0).all()
    assert done[-1] == pytest.approx(total, abs=1e-12)


@given(steps, st.lists(st.floats(0, 150), min_size=2, max_size=12, unique=True))
def test_samples_of_consecutive_all_reduces_share_out_the_profile(step, cuts_ms) -> None:
    produced, measured = step
    cuts = sorted(cuts_ms)
    records = [record(a, b, group=i) for i, (a, b) in enumerate(itertools.pairwise(cuts))]
    sampled = overlap_samples(records, produced, measured)
    total = measured.compute_seconds.sum()
    assert sum(sample.compute_seconds for sample in sampled.samples) <= total + 1e-12
    for sample in sampled.samples:
        original = records[sample.group]
        assert sample.overlap_seconds + sample.residual_seconds == pytest.approx(
            (original.finished_ns - original.started_ns) * 1e-9, abs=1e-12
        )
        if sample.residual_seconds > 0 and sample.overlap_seconds > 0:
            assert original.finished_ns > produced.last_ns > original.started_ns
    assert len(sampled.samples) + len(sampled.dropped) == len(records)
