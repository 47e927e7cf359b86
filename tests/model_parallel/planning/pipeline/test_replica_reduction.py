"""Fusion of the gradients of a stage's replicas, with overlapped all-reduces if that is faster."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.drawing import num_examples
from tf_libra.model_parallel.planning.pipeline.replica_reduction import plan_reduction, worthwhile
from tf_libra.model_parallel.simulation import PipelineTimeline
from tf_libra.model_parallel.simulation.pipeline import PipelineBlock


def seconds_of(groups, num_bytes, compute, replicas, rate, latency):
    """Return the time if a group begins after its last gradient and the previous group."""
    ends = list(itertools.accumulate(compute))
    at = 0.0
    for start, stop in groups:
        size = sum(num_bytes[start:stop])
        taken = 2 * (replicas - 1) / replicas * size / rate + 2 * latency if size else 0.0
        at = max(at, ends[stop - 1]) + taken
    return max(at, ends[-1])


def every(count):
    """Return all divisions of gradients into consecutive groups."""
    for cuts in itertools.product([False, True], repeat=count - 1):
        bounds = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), count]
        yield tuple(itertools.pairwise(bounds))


@settings(max_examples=num_examples(150), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 1000), st.floats(0.0, 3.0)), min_size=1, max_size=6),
    st.integers(2, 5),
    st.floats(10, 1000),
    st.floats(0, 2),
)
def test_is_near_the_best_of_all_groups_and_never_worse_than_one(gradients, N, rate, latency):
    """The tolerance is LIBRA's bound, one chunk's share, and the least worthwhile gain."""
    num_bytes, compute = zip(*gradients, strict=True)
    found = plan_reduction(num_bytes, compute, N, rate, latency)
    assert [a for a, _ in found.groups] == [0, *(b for _, b in found.groups[:-1])]
    assert found.groups[-1][1] == len(gradients)
    arguments = (num_bytes, compute, N, rate, latency)
    assert found.predicted_seconds == pytest.approx(
        seconds_of(found.groups, *arguments), rel=1e-9, abs=1e-12
    )
    best = min(seconds_of(groups, *arguments) for groups in every(len(gradients)))
    assert found.predicted_seconds <= found.unsplit_seconds
    assert found.predicted_seconds <= best * (1 + 0.02 + 6 / 150) / 0.98 + 1e-12


def test_long_startup_leads_to_one_all_reduce():
    found = plan_reduction([1e6] * 4, [0.01] * 4, 2, 1e9, 1.0)
    assert found.groups == ((0, 4),)
    assert found.predicted_seconds == found.unsplit_seconds


def test_slow_transmission_begins_early():
    found = plan_reduction([4e6] * 4, [0.01] * 4, 2, 1e9, 1e-5)
    assert len(found.groups) > 1
    assert found.predicted_seconds < 0.8 * found.unsplit_seconds


@pytest.mark.parametrize(
    ("num_bytes", "replicas", "rate"), [([], 2, 1.0), ([1.0], 0, 1.0), ([1.0], 2, 0.0)]
)
def test_bad_numbers_are_rejected(num_bytes, replicas, rate):
    with pytest.raises(ValueError, match="must"):
        plan_reduction(num_bytes, [0.1] * len(num_bytes), replicas, rate, 0.0)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=5),
    st.integers(0, 12),
    st.data(),
)
def test_as_few_stages_as_make_the_iteration_as_short_as_all_of_them(stages, others, data):
    """Compares with all sets of stages whose all-reduces end earlier."""
    ends = [end for end, _ in stages]
    gains = {stage: min(gain, ends[stage]) for stage, (_, gain) in enumerate(stages)}
    for stage in data.draw(st.sets(st.sampled_from(sorted(gains)))):
        del gains[stage]
    blocks = [PipelineBlock("all_reduce", stage, None, 0.0, end) for stage, end in enumerate(ends)]
    blocks.append(PipelineBlock("backward", 0, 0, 0.0, others))

    def seconds(chosen):
        return max(others, *(end - gains[k] * (k in chosen) for k, end in enumerate(ends)
                             if k in gains), *(end for k, end in enumerate(ends)
                                               if k not in gains), 0)  # fmt: skip

    found = worthwhile(PipelineTimeline(tuple(blocks)), gains)
    sets = [set(some) for n in range(len(gains) + 1) for some in itertools.combinations(gains, n)]
    assert seconds(found) == min(map(seconds, sets))
    assert all(seconds(found - {stage}) > seconds(found) for stage in found)
