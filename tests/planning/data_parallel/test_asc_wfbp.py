import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_libra
from tests.drawing import num_examples
from tests.planning.data_parallel import reference
from tf_libra import strategies
from tf_libra.internal import formatting

# a = 1 s, 1 s per byte.
COST = tf_libra.ContentionModel(2, 0.5, (1.0, 0.0), (1.0, 0, 0), (1.0, 0, 0))

PRINTED = {"rule": "equation-40"}


def plan_of(num_bytes, compute_seconds, cost=COST, **kwargs):
    profile = tf_libra.BackwardProfile.from_arrays(num_bytes, compute_seconds)
    return tf_libra.make_plan(profile, cost, strategies.AscWfbp(**kwargs))


@settings(max_examples=num_examples(300), deadline=None)
@given(reference.profiles(max_tensors=12), reference.any_costs((2, 4)))
def test_merging_equals_the_published_code(profile, cost):
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


def test_unknown_rule_is_named():
    with pytest.raises(ValueError, match=r"rule.*equation-40"):
        strategies.AscWfbp(rule="eq")
    with pytest.raises(ValueError, match=r"rule.*equation-40"):
        strategies.AscWfbp(rule=np.zeros(2))


def test_tensor_is_normal_if_its_all_reduce_is_hidden():
    # Q1: it ends at 1 + 1 + 3 = 5, when the next tensor is produced.
    assert plan_of([3, 3, 3], [1, 4, 4], **PRINTED).tensor_kinds == (
        "normal",
        "normal",
        "simultaneous",
    )


def test_tensor_is_merged_within_a_startup_overhead():
    # Q2: 1.9 < 1 + 1.
    plan = plan_of([3, 3], [1, 0.9], **PRINTED)
    assert plan.tensor_kinds == ("merged", "normal")
    assert len(plan.groups) == 1


def test_tensor_is_simultaneous_otherwise():
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


def test_no_concurrent_all_reduces_if_computation_would_stop():
    cost = tf_libra.ContentionModel(2, 0.5, (1.0, 0.3), (1.0, 0, 0), (1.0, 0, 0))
    plan = plan_of([10, 10, 10], [1, 4, 20], cost, num_threads=2)
    assert {g.stream for g in plan.groups} == {0}
    assert "no tensor is simultaneous" in plan.notes[0]


def test_beats_waiting_when_startup_dominates():
    profile = tf_libra.BackwardProfile.from_arrays([2, 2, 2, 2], [1, 1.5, 1.5, 1.5])
    asc = tf_libra.make_plan(profile, COST, strategies.AscWfbp(contention=1.2))
    wfbp = tf_libra.make_plan(profile, COST, "wfbp")
    assert asc.predicted_seconds < wfbp.predicted_seconds


# 64 MB, an all-reduce longer than what computes meanwhile: two of them share the link, or worse.
BUSY = ([4_000_000] * 16, [1e-3] * 16)
LINK = tf_libra.ContentionModel(4, 1e-4, (1.0, 0.0), (1e9, 0, 0), (1e9, 0, 0))


def test_large_gamma_notes_the_faster_plan():
    merged_seconds = tf_libra.make_plan(
        tf_libra.BackwardProfile.from_arrays(*BUSY), LINK, "mg-wfbp"
    ).predicted_seconds
    usual, small, large = (plan_of(*BUSY, LINK, contention=c) for c in (None, 1.0, 8.0))
    # The same groups whatever gamma is: the authors' rule.
    assert usual.groups == small.groups == large.groups and usual.num_streams == 2
    assert usual.notes == ()
    assert small.predicted_seconds < merged_seconds < large.predicted_seconds
    assert small.notes == ()
    assert f"merged as by mg-wfbp, is predicted {formatting.time(merged_seconds)}" in large.notes[0]


@settings(max_examples=num_examples(60), deadline=None)
@given(reference.profiles(max_tensors=8), reference.any_costs((1,)), st.floats(1, 4))
def test_streams_are_chosen_by_the_model(profile, cost, gamma):
    def planned(**arguments):
        return tf_libra.make_plan(profile, cost, strategies.AscWfbp(contention=gamma, **arguments))

    rule, most = planned(), planned(max_streams=4)
    assert most.num_streams <= 4 and strategies.AscWfbp(max_streams=4).num_streams == 4
    if rule.notes and rule.notes[0].startswith("no tensor is simultaneous"):
        assert most == rule
        return
    mg = tf_libra.make_plan(profile, cost, "mg-wfbp")
    least = min(rule.predicted_seconds, mg.predicted_seconds)
    assert most.predicted_seconds <= least * (1 + 1e-8) + 1e-15
    assert "of at most 4 concurrent all-reduces" in most.notes[0]


def test_unfilled_link_gets_more_streams():
    # All-reduces take much longer during computation than the rule thinks.
    slow = tf_libra.ContentionModel(8, 1e-4, (1.0, 0.0), (2e8, 0, 0), (1e9, 0, 0))
    arguments = [40_000_000, 90_000_000, 60_000_000, 90_000_000], [0.08, 0.08, 0.09, 0.08]
    two = plan_of(*arguments, slow, contention=1.0)
    four = plan_of(*arguments, slow, contention=1.0, max_streams=4)
    assert (two.num_streams, four.num_streams) == (2, 3)
    assert four.predicted_seconds < two.predicted_seconds
    alone = plan_of(*BUSY, LINK, contention=8.0, max_streams=4)
    assert alone.num_streams == 1
    with pytest.raises(ValueError, match="max_streams must be from 2"):
        strategies.AscWfbp(max_streams=1)
