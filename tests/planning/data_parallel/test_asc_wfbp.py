import pytest
from hypothesis import given, settings

import tf_libra
from tests.planning.data_parallel import reference
from tf_libra import strategies

# a = 1 s, 1 s per byte.
COST = tf_libra.ContentionModel(2, 0.5, (1.0, 0.0), (1.0, 0, 0), (1.0, 0, 0))

PRINTED = {"rule": "equation-40"}


def plan_of(num_bytes, compute_seconds, cost=COST, **kwargs):
    profile = tf_libra.BackwardProfile.from_arrays(num_bytes, compute_seconds)
    return tf_libra.make_plan(profile, cost, strategies.AscWfbp(**kwargs))


@settings(max_examples=300, deadline=None)
@given(reference.profiles(max_tensors=12), reference.any_costs((2, 4)))
def test_merges_as_the_published_code_does(profile, cost):
    """The authors' loop: merge one, then recompute when every all-reduce starts, one by one."""
    produced = profile.compute_seconds.cumsum()
    count = len(produced)
    merged = [False] * count
    for index in range(count - 1):
        starts = reference.communication_starts(profile, cost, merged, 2)
        merged[index] = bool(produced[index + 1] < starts[index])
    plan = tf_libra.make_plan(profile, cost, strategies.AscWfbp(num_threads=2))
    assert [g.stop for g in plan.groups] == [i + 1 for i in range(count) if not merged[i]]
    kinds = [kind for kind in plan.tensor_kinds if kind != "merged"]
    ready = [produced[group.stop - 1] for group in plan.groups]
    final = reference.communication_starts(profile, cost, merged, 2)
    begins = [s for s, m in zip(final, merged, strict=True) if not m]
    waits = [kind == "simultaneous" for kind in kinds]
    assert waits == [begin > at for begin, at in zip(begins, ready, strict=True)]


def test_no_all_reduce_waits_for_a_tensor():
    # The second is produced within a startup overhead, but after the first could start.
    assert plan_of([3, 3], [1, 0.9]).tensor_kinds == ("normal", "simultaneous")
    # The first runs until 5: the third is there before the second could start.
    assert plan_of([3, 3, 3], [1, 0.9, 2]).tensor_kinds == ("normal", "merged", "simultaneous")


def test_a_rule_that_does_not_exist_is_named():
    with pytest.raises(ValueError, match="rule must be one of published-code, equation-40"):
        strategies.AscWfbp(rule="eq")


def test_normal_where_the_all_reduce_is_hidden():
    # Q1: it ends at 1 + 1 + 3 = 5, when the next tensor is produced.
    assert plan_of([3, 3, 3], [1, 4, 4], **PRINTED).tensor_kinds == (
        "normal",
        "normal",
        "simultaneous",
    )


def test_merged_where_the_next_is_produced_within_a_startup_overhead():
    # Q2: 1.9 < 1 + 1.
    plan = plan_of([3, 3], [1, 0.9], **PRINTED)
    assert plan.tensor_kinds == ("merged", "normal")
    assert len(plan.groups) == 1


def test_simultaneous_otherwise():
    # The second, waiting, would run from 12 to 23; the third is produced at 20.
    plan = plan_of([10, 10, 10], [1, 4, 15], **PRINTED)
    assert plan.tensor_kinds == ("normal", "simultaneous", "simultaneous")
    assert [g.stream for g in plan.groups] == [0, 1, 0]
    profile = tf_libra.BackwardProfile.from_arrays([10, 10, 10], [1, 4, 15])
    spans = tf_libra.simulate(profile, plan, COST).groups
    assert [span.start_seconds for span in spans[:2]] == pytest.approx([1, 5])


def test_a_simultaneous_all_reduce_is_delayed_by_its_penalty():
    # The second starts at 5, when 10·(1 - 4/11) bytes of the first are left, and ends at 16 plus
    # its penalty. The third is produced 1 s before that. Where it has to wait for it, the fourth
    # is produced within a startup overhead of its start; where it need not, later.
    ending = 16 + 0.5 * 10 * (1 - 4 / 11)
    seconds = [1, 4, ending - 1 - 5, 1.5]
    plan = plan_of([10, 10, 10, 1], seconds, contention=1.5, **PRINTED)
    assert plan.tensor_kinds[2] == "merged"
    free = plan_of([10, 10, 10, 1], seconds, contention=1.0, **PRINTED)
    assert free.tensor_kinds[2] == "simultaneous"


def test_the_plan_carries_gamma():
    assert plan_of([10, 10], [1, 4], contention=1.7).contention == 1.7


def test_no_two_at_once_where_computation_would_stop():
    cost = tf_libra.ContentionModel(2, 0.5, (1.0, 0.3), (1.0, 0, 0), (1.0, 0, 0))
    plan = plan_of([10, 10, 10], [1, 4, 20], cost, num_threads=2)
    assert {g.stream for g in plan.groups} == {0}
    assert "no tensor is simultaneous" in plan.notes[0]


def test_beats_waiting_when_startup_dominates():
    profile = tf_libra.BackwardProfile.from_arrays([2, 2, 2, 2], [1, 1.5, 1.5, 1.5])
    asc = tf_libra.make_plan(profile, COST, strategies.AscWfbp(contention=1.2))
    wfbp = tf_libra.make_plan(profile, COST, "wfbp")
    assert asc.predicted_seconds < wfbp.predicted_seconds
