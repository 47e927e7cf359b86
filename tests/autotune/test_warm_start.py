"""Similarity of jobs, and reuse of a similar job's result."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_libra.autotune import TensorSpec, warm_start
from tf_libra.autotune.warm_start import (
    MAX_SECONDS,
    JobComparison,
    JobSignature,
    LayerSignature,
    PlanOutline,
    WarmStart,
    distance,
)
from tf_libra.specs.plan import Plan, TensorGroup

layers = st.lists(
    st.builds(LayerSignature, st.integers(0, 10**8), st.sampled_from(["float32", "float16"])),
    min_size=1,
    max_size=4,
).map(tuple)
jobs = st.builds(
    JobSignature, layers, st.integers(1, 4), st.integers(1, 2), st.none() | st.floats(1e3, 1e11)
)


def job(*sizes: int, workers: int = 2, per_host: int = 1) -> JobSignature:
    return JobSignature(tuple(LayerSignature(size, "float32") for size in sizes), workers, per_host)


def start_of(job: JobSignature) -> WarmStart:
    return WarmStart(job, "aiacc", PlanOutline((1.0,), (1,), (0,)))


def nearest(
    here: JobSignature, known: list[WarmStart], seconds: float = MAX_SECONDS
) -> WarmStart | None:
    return JobComparison.compare(here, known, seconds).nearest(here.bytes_per_second)


@settings(max_examples=50, deadline=None)
@given(jobs, jobs)
def test_distance_is_a_share_and_the_same_from_both_sides(
    first: JobSignature, other: JobSignature
) -> None:
    found = distance(first, other, 30.0)
    assert 0 <= found <= 1
    assert found == pytest.approx(distance(other, first, 30.0))
    assert distance(first, first) == 0


@pytest.mark.parametrize("num_layers", [3, 60])
def test_smaller_differences_are_nearer(num_layers: int) -> None:
    """The distance counts edits of small graphs, and compares features of large graphs."""
    sizes = [2**20] * num_layers
    here = job(*sizes)
    known = [
        job(2**21, *sizes[1:]),  # one layer twice as large
        job(*(4 * size for size in sizes)),  # all are four times
        job(*sizes, *sizes, workers=8),
    ]
    apart = [distance(here, signature, 20.0) for signature in known]
    assert apart[0] < min(apart[1:])
    starts = [start_of(signature) for signature in reversed(known)]
    assert nearest(here, starts, 60.0) is starts[-1]


def test_jobs_are_compared_on_one_scale() -> None:
    """A distance in edits is not comparable with a distance in features of larger graphs."""
    here, alike = job(*[2**20] * 3), job(*[2**20] * 6)
    large = job(*[2**20] * 40)
    assert distance(here, alike, 0.0) < distance(here, large) < distance(here, alike, 20.0)
    known = [start_of(large), start_of(alike)]
    assert nearest(here, known, 60.0) is known[1]


def test_topology_changes_the_distance() -> None:
    """The same model on the same number of workers, all on one host or each on its own."""
    here = job(2**20, 2**10, workers=4, per_host=4)
    apart = job(2**20, 2**10, workers=4, per_host=1)
    assert distance(here, apart, 20.0) > 0


def at(rate: float | None, signature: JobSignature | None = None) -> WarmStart:
    return start_of(replace(signature or job(2**20, 2**10), bytes_per_second=rate))


@pytest.mark.parametrize("num_layers", [3, 60])
def test_network_rate_changes_the_distance(num_layers: int) -> None:
    """A slightly changed model on the same network is nearer than the same model on another one."""
    sizes = [2**20] * num_layers
    changed, same = job(2**21, *sizes[1:]), job(*sizes)
    here = at(1.1e9, same).job
    known = [at(3e9, same), at(0.4e9, same), at(1e9, changed), at(25e9, same)]
    assert nearest(here, known, 60.0) is known[2]
    apart = distance(here, known[0].job, 20.0)
    assert 0.1 < apart < 1
    assert apart == pytest.approx(distance(known[0].job, here, 20.0))
    # What differs no more than two measurements is the same.
    assert nearest(here, [known[2], at(0.9e9, same)], 60.0) == at(0.9e9, same)


def test_job_on_a_very_different_network_is_not_used() -> None:
    here = at(25e9).job
    assert nearest(here, [at(1e9)]) is None
    assert nearest(here, [at(1e9), at(10e9)]) == at(10e9)


def test_unknown_rates_leave_the_graph_distance() -> None:
    """Files of early versions have no rate, nor do jobs without a measured all-reduce."""
    unknown, near, far = at(None), at(20e9), at(1e9)
    here = at(25e9).job
    assert nearest(here, [unknown]) is unknown
    assert nearest(here, [unknown, far, near]) is near
    assert nearest(here, [far, unknown]) is unknown
    for start in (unknown, near, far):
        assert nearest(unknown.job, [start, at(None, job(2**10))]) is start


def test_graphs_are_compared_once_before_any_rate_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changed = job(2**21, 2**10)
    known = [at(1e9, changed), at(10e9, changed), at(None, changed)]
    compared = JobComparison.compare(at(None).job, known, 20.0)
    monkeypatch.setattr(warm_start, "_edit_distance", None)
    for rate, found in ((1e9, known[0]), (11e9, known[1]), (1e13, known[2]), (None, known[0])):
        assert compared.nearest(rate) is found
    assert JobComparison.compare(at(None).job, []).nearest(1e9) is None


def test_job_with_nothing_in_common_is_not_used() -> None:
    assert nearest(job(2**20), []) is None
    known = JobSignature((LayerSignature(1, "float64"),), 2, 1)
    assert distance(job(2**30), known, 10.0) < 1.0  # the cluster is the same


def test_without_time_features_are_compared() -> None:
    assert 0 < distance(job(2**20), job(2**21), 0.0) < 1


def test_gradients_of_one_scope_are_a_layer() -> None:
    names = ["dense_1/bias", "dense_1/kernel", "dense/bias", "dense/kernel", "w", "v"]
    tensors = [TensorSpec(name, 8, "float32") for name in names]
    assert [layer.num_bytes for layer in JobSignature.from_tensors(tensors, 2, 1).layers] == [
        16,
        16,
        8,
        8,
    ]


@given(st.data(), st.lists(st.integers(1, 100), min_size=1, max_size=8))
def test_an_outline_gives_its_own_plan_back(data, sizes: list[int]) -> None:
    count = len(sizes)
    cuts = data.draw(st.sets(st.integers(1, max(1, count - 1)), max_size=4))
    edges = sorted({0, count, *(cut for cut in cuts if cut < count)})
    groups = tuple(
        TensorGroup(a, b, data.draw(st.integers(1, 4)), data.draw(st.integers(0, 2)))
        for a, b in itertools.pairwise(edges)
    )
    plan = Plan(groups, tuple(f"t{i}" for i in range(count)), tuple(sizes), 2, "x")
    assert PlanOutline.from_plan(plan).groups(sizes) == groups


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=6),
    st.lists(st.integers(0, 100), min_size=1, max_size=8),
)
def test_an_outline_of_others_covers_all_tensors(shares, sizes: list[int]) -> None:
    stops = (*sorted(shares[:-1]), 1.0)
    outline = PlanOutline(stops, (1,) * len(stops), (0,) * len(stops))
    groups = outline.groups(sizes)
    assert groups[0].start == 0 and groups[-1].stop == len(sizes)
    assert all(a.stop == b.start for a, b in itertools.pairwise(groups))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PlanOutline((), (), ()), "stops must ascend"),
        (lambda: PlanOutline((0.5, 0.2), (1, 1), (0, 0)), "stops must ascend"),
        (lambda: PlanOutline((1.0,), (0,), (0,)), "num_threads must be"),
        (lambda: PlanOutline((1.0,), (1, 1), (0,)), "num_threads"),
        (lambda: JobSignature((), 2, 1), "layers must hold"),
        (lambda: JobSignature((LayerSignature(1, "x"),), 0, 1), "num_workers must be"),
        (lambda: JobSignature((LayerSignature(1, "x"),), 2, 1, 0.0), "bytes_per_second must be"),
        (lambda: JobSignature((LayerSignature(1, "x"),), 2, 1, "fast"), "bytes_per_second must be"),
    ],
)
def test_bad_values_are_named(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
