import numpy as np
import pytest

from benchmarks.gpu.observing import Seen, observation
from benchmarks.gpu.overlap import Span
from tf_libra import BackwardProfile, ContentionModel, Plan, TensorGroup, simulate, strategies
from tf_libra.autotune import Budget, TensorSpec, tune
from tf_libra.profiling.overlap_samples import overlap_samples

PLAN = Plan(
    groups=(TensorGroup(0, 2, 128), TensorGroup(2, 3, 512)),
    tensor_names=("a", "b", "c"),
    num_bytes=(4, 8, 16),
    num_workers=2,
    strategy="by hand",
)


def test_wait_of_a_rank_is_no_all_reduce() -> None:
    # Rank 1 comes to the first group a second later, and rank 0 to the second.
    ranks = [
        Seen((1.0, 2.0, 4.0), ((0, Span(2.0, 3.5)), (1, Span(4.5, 5.0)))),
        Seen((1.0, 3.0, 3.5), ((0, Span(3.0, 3.5)), (1, Span(3.5, 5.0)))),
    ]
    seen = observation(ranks, PLAN, step=7)
    assert seen.production is not None
    assert seen.production.offset_seconds.tolist() == [1.0, 2.0, 4.0]
    times = [(r.started_ns, r.first_byte_ns, r.finished_ns) for r in seen.records]
    assert times == [(3 * 10**9, 3 * 10**9, 3_500_000_000), (4_500_000_000,) * 2 + (5 * 10**9,)]
    assert [
        (r.step, r.group, r.num_bytes, r.num_threads, r.tensor_names) for r in seen.records
    ] == [
        (7, 0, 12, 128, ("a", "b")),
        (7, 1, 16, 512, ("c",)),
    ]


def test_gradients_keep_the_order_of_their_buffer() -> None:
    late = Seen((2.0, 1.0, -0.5), ())
    seen = observation([late, late], PLAN, step=1)
    assert seen.production is not None
    assert seen.production.offset_seconds.tolist() == [2.0, 2.0, 2.0]


def test_a_known_machine_is_tuned_to_its_own_plan() -> None:
    """Ranks that take what the simulator says: what is fitted predicts as the machine does."""
    cost = ContentionModel(2, 5e-5, (1.0, 1e-4), (4e9, 3e9, 0.01), (6e9, 5e9, 0.01))
    rng = np.random.default_rng(3)
    sizes = [int(size) for size in rng.integers(10**5, 10**7, 12)]
    seconds = rng.uniform(2e-3, 8e-3, 12)
    profile = BackwardProfile.from_arrays(sizes, seconds, [f"t{i}" for i in range(12)])
    specs = [TensorSpec(t.name, t.num_bytes, "float32") for t in profile.tensors]
    libra = strategies.Libra(threads=(128, 512), race=False)
    tuning = tune(specs, libra, 2, Budget(), leaves_records=False)
    experiment, step = next(tuning), 1
    with pytest.raises(StopIteration) as finished:
        while True:
            seen = None
            if experiment.traced:
                observed = machine(profile, experiment.plan, cost)
                seen = observation([observed, observed], experiment.plan, step)
                if not experiment.plan.after_backward:
                    assert overlap_samples(seen.records, seen.production, profile).samples
            experiment, step = tuning.send(seen), step + 1
    tuned = finished.value.value
    assert tuned.is_complete, tuned.notes
    assert tuned.held_out_error < 0.05
    predicted = simulate(profile, tuned.plan, tuned.cost_model).backward_seconds
    assert predicted == pytest.approx(
        simulate(profile, tuned.plan, cost).backward_seconds, rel=0.05
    )


def machine(profile: BackwardProfile, plan: Plan, cost: ContentionModel) -> Seen:
    """A step of a rank that does exactly what the simulator says."""
    work = np.cumsum(profile.compute_seconds)
    if plan.after_backward:
        spans, at = [], float(work[-1])
        for index, group in enumerate(plan.groups):
            size = sum(plan.num_bytes[group.start : group.stop])
            end = at + float(cost.exclusive_all_reduce(size, group.num_threads))
            spans.append((index, Span(at, end)))
            at = end
        return Seen(tuple(work.tolist()), tuple(spans))
    timeline = simulate(profile, plan, cost)
    spans = [(i, Span(g.start_seconds, g.end_seconds)) for i, g in enumerate(timeline.groups)]
    # Work goes on evenly between two ends of all-reduces, at the rate of the running tasks.
    times, done = [0.0], [0.0]
    for stage in timeline.stages:
        at = times[-1]
        if stage.overlap_seconds:
            rate = rate_of(cost, plan, spans, at)
            times.append(at + stage.overlap_seconds)
            done.append(done[-1] + stage.overlap_seconds * rate)
        if stage.residual_compute_seconds:
            times.append(times[-1] + stage.residual_compute_seconds)
            done.append(done[-1] + stage.residual_compute_seconds)
        if stage.residual_communication_seconds:
            times.append(times[-1] + stage.residual_communication_seconds)
            done.append(done[-1])
    produced = np.interp(work, done, times)
    return Seen(tuple(produced.tolist()), tuple(spans))


def rate_of(cost: ContentionModel, plan: Plan, spans: list[tuple[int, Span]], at: float) -> float:
    for index, span in spans:
        if span.start <= at + 1e-9 < span.end:
            return float(cost.compute_rate(plan.groups[index].num_threads))
    return 1.0
