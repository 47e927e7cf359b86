import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gpu.overlap import Progress, Span, bus_bandwidth, last_to_arrive, sample
from tf_libra import ContentionModel, OverlapSample
from tf_libra.cost_model import fit

# 3 seconds of work; half as fast from 1 to 5.
PROGRESS = Progress((0.0, 1.0, 5.0), (0.0, 1.0, 3.0))


def test_within_computation_all_of_it_overlaps() -> None:
    assert sample(Span(1.0, 3.0), PROGRESS, 8, 128) == OverlapSample(8, 128, 1.0, 2.0, 0.0)


def test_communication_after_computation_is_residual() -> None:
    found = sample(Span(0.5, 7.0), PROGRESS, 8, 128, step=2, group=1, plan="p")
    assert found == OverlapSample(8, 128, 2.5, 4.5, 2.0, step=2, group=1, plan="p")


@pytest.mark.parametrize("progress", [None, PROGRESS])
def test_after_computation_nothing_overlaps(progress: Progress | None) -> None:
    assert sample(Span(5.0, 7.0), progress, 8, 128) == OverlapSample(8, 128, 0.0, 0.0, 2.0)


def test_an_overlap_below_the_clock_counts_as_none() -> None:
    found = sample(Span(5.0 - 1e-6, 7.0), PROGRESS, 8, 128)
    assert found is not None
    assert found.compute_seconds == found.overlap_seconds == 0.0
    assert found.residual_seconds == pytest.approx(2.0)


def test_no_time_is_no_sample() -> None:
    assert sample(Span(1.0, 1.0), PROGRESS, 8, 128) is None


def test_progress_needs_two_marks_of_both_kinds() -> None:
    for at, done in (((0.0,), (0.0,)), ((0.0, 1.0), (0.0,))):
        with pytest.raises(ValueError, match="at and done"):
            Progress(at, done)


@given(st.lists(st.floats(0, 10), min_size=1, max_size=4), st.floats(10.5, 20))
def test_the_last_to_start_is_the_last_to_arrive(starts: list[float], end: float) -> None:
    rank = last_to_arrive([Span(start, end) for start in starts])
    assert end - starts[rank] == min(end - start for start in starts)


def test_bus_bandwidth_of_a_ring() -> None:
    # Two ranks each send the whole of it once; of four, one and a half times.
    assert bus_bandwidth(100, 2.0, 2) == 50.0
    assert bus_bandwidth(100, 1.0, 4) == 150.0


def test_samples_of_a_known_machine_give_its_model_back() -> None:
    cost = ContentionModel(2, 5e-5, (1.0, 1e-4), (4e9, 3e9, 0.01), (6e9, 5e9, 0.01))
    samples = []
    for threads in (128, 256, 512, 1024, 2048, 4096):
        for num_bytes in (2**16, 2**20, 2**24):
            overlapped = float(cost.overlapped_all_reduce(num_bytes, threads))
            work = overlapped * float(cost.compute_rate(threads))
            progress = Progress((0.0, 1.0, 1.0 + overlapped), (0.0, 1.0, 1.0 + work))
            alone = float(cost.exclusive_all_reduce(num_bytes, threads))
            for span, computed in (
                (Span(1.0, 1.0 + overlapped), progress),
                (Span(0.0, alone), None),
            ):
                measured = sample(span, computed, num_bytes, threads)
                assert measured is not None
                samples.append(measured)
    found = fit(samples, 2)
    assert found.median_error < 0.01
    assert found.model.compute_rate(2048) == pytest.approx(cost.compute_rate(2048), rel=0.02)
    assert found.model.exclusive_rate(512) == pytest.approx(cost.exclusive_rate(512), rel=0.05)
