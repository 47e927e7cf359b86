import dataclasses
import importlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_libra
from tests.drawing import num_examples
from tests.planning.data_parallel import reference
from tf_libra import strategies
from tf_libra.internal import formatting
from tf_libra.planning import explain
from tf_libra.planning.explain import GroupCost, bottleneck, explain_group, group_costs

PROFILE = tf_libra.BackwardProfile.from_arrays(
    [4_000_000, 1000, 6_000_000, 1000, 9_000_000, 500_000],
    [4e-3, 1e-4, 5e-3, 0.0, 3e-3, 2e-3],
    names=[f"model/block_{i}/a_rather_long_layer_name_{i}/kernel" for i in range(6)],
)
COST = tf_libra.ContentionModel(8, 1e-5, (1.0, 0.08), (2e9, 1.2e9, 0.4), (2.4e9, 1.3e9, 0.5))


@settings(max_examples=num_examples(60), deadline=None)
@given(
    reference.profiles(max_tensors=8),
    reference.any_costs((1, 2, 4)),
    st.sampled_from(sorted(strategies.BY_NAME)),
)
def test_text_of_every_plan_fits_100_columns(profile, cost, name):
    plan = tf_libra.make_plan(profile, cost, name)
    explanation = explain(profile, plan, cost)
    assert [entry.group for entry in explanation.groups] == list(plan.groups)
    assert max(map(len, str(explanation).splitlines())) <= 100
    assert (explanation.one_group is None) == (len(plan.groups) > 1)


@settings(max_examples=num_examples(60), deadline=None)
@given(st.data(), reference.profiles(max_tensors=8), reference.any_costs((1, 2, 4, 12)))
def test_text_names_bytes_of_cut_tensors(data, profile, cost):
    plan = data.draw(reference.part_plans(profile, (1, 2), (0, 3, 4)))
    explanation = explain(profile, plan, cost)
    assert max(map(len, str(explanation).splitlines())) <= 100
    assert [entry.num_bytes for entry in explanation.groups] == list(plan.group_bytes)
    for entry in explanation.groups:
        assert (f"from byte {entry.group.start_byte}" in str(explanation)) or (
            entry.group.start_byte == 0
        )


def test_threads_are_explained_by_the_bytes_that_count():
    sparse = PROFILE.with_density({PROFILE.names[2]: 0.02})
    plan = tf_libra.make_plan(sparse, COST, strategies.Wfbp(num_threads=2))
    explanation = explain(sparse, plan, COST)
    assert [entry.num_bytes for entry in explanation.groups] == list(plan.group_bytes)
    text = f" of {formatting.size(120_000)} without zero blocks takes"
    counted = [text in entry.threads for entry in explanation.groups]
    assert counted == [False, False, True, False, False, False]
    assert "zero blocks" not in str(explain(PROFILE, plan, COST))


def test_with_updates_alternatives_change_the_step():
    updates = [2e-3] * len(PROFILE.tensors)
    profile = tf_libra.BackwardProfile.from_arrays(
        PROFILE.num_bytes, PROFILE.compute_seconds, PROFILE.names, update_seconds=updates
    )
    plan = tf_libra.make_plan(profile, COST, strategies.Wfbp(num_threads=2))
    explanation = explain(profile, plan, COST)
    seconds = tf_libra.simulate(profile, plan, COST).step_seconds
    assert f"the step ends at {formatting.time(seconds)}" in explanation.summary
    assert "updates" not in explain(PROFILE, plan, COST).summary
    last = len(plan.groups) - 1
    joined = (
        *plan.groups[: last - 1],
        dataclasses.replace(plan.groups[last - 1], stop=plan.groups[last].stop),
    )
    other = tf_libra.simulate(profile, dataclasses.replace(plan, groups=joined), COST)
    [merge] = [a for a in explanation.groups[last].alternatives if "merged" in a.change]
    assert merge.seconds == pytest.approx(other.step_seconds - seconds)


def test_alternatives_equal_simulation():
    plan = tf_libra.make_plan(PROFILE, COST, strategies.Libra(threads=(1, 2, 4)))
    assert len(plan.groups) > 2
    entry = explain(PROFILE, plan, COST).groups[1]
    by_change = {a.change: a.seconds for a in entry.alternatives}
    r = plan.groups[1].num_threads
    doubled = [*plan.groups]
    doubled[1] = dataclasses.replace(doubled[1], num_threads=2 * r)
    seconds = tf_libra.simulate(PROFILE, dataclasses.replace(plan, groups=tuple(doubled)), COST)
    assert by_change[f"r = {2 * r}"] == pytest.approx(
        seconds.backward_seconds - plan.predicted_seconds
    )
    assert {"groups 0 and 1 merged", "groups 1 and 2 merged"} < by_change.keys()


@settings(max_examples=num_examples(60), deadline=None)
@given(
    st.data(),
    reference.profiles(max_tensors=7, updates=True),
    reference.lawful_costs((1, 2, 4)),
    st.booleans(),
)
def test_every_change_equals_simulation(data, profile, cost, after_backward):
    """Changes are simulated many in one call if that is possible."""
    plan = data.draw(reference.part_plans(profile, (1, 2), (0,)))
    if data.draw(st.booleans()):
        plan = tf_libra.make_plan(profile, cost, strategies.Wfbp(num_threads=2))
    plan = dataclasses.replace(plan, after_backward=after_backward)
    now = tf_libra.simulate(profile, plan, cost).step_seconds
    explained = explain(profile, plan, cost)
    for index, entry in enumerate(explained.groups):
        assert entry == explain_group(profile, plan, cost, index)
        group = plan.groups[index]
        for reported in entry.alternatives:
            kind, *words = reported.change.split()
            if kind == "r":
                changed = [dataclasses.replace(group, num_threads=int(words[1]))]
                others = [[*plan.groups[:index], *changed, *plan.groups[index + 1 :]]]
            elif kind == "cut":
                tensor = int(words[-1])
                changed = [
                    dataclasses.replace(group, stop=tensor, stop_byte=None),
                    dataclasses.replace(group, start=tensor, start_byte=0),
                ]
                others = [[*plan.groups[:index], *changed, *plan.groups[index + 1 :]]]
            else:
                first, second = int(words[0]), int(words[2])
                end = plan.groups[second]
                others = [
                    [
                        *plan.groups[:first],
                        dataclasses.replace(
                            plan.groups[first],
                            stop=end.stop,
                            stop_byte=end.stop_byte,
                            num_threads=r,
                        ),
                        *plan.groups[second + 1 :],
                    ]
                    for r in (plan.groups[first].num_threads, end.num_threads)
                ]
            seconds = min(
                tf_libra.simulate(
                    profile, dataclasses.replace(plan, groups=tuple(groups)), cost
                ).step_seconds
                for groups in others
            )
            assert reported.seconds == pytest.approx(seconds - now, rel=1e-6, abs=2e-9 * now)


def test_many_groups_are_simulated_vectorized(monkeypatch):
    """One by one, a plan of two thousand groups would take minutes."""
    simulated = []
    monkeypatch.setattr(
        importlib.import_module("tf_libra.planning.explain"),  # its function has its name
        "simulate",
        lambda *args: simulated.append(args) or tf_libra.simulate(*args),
    )
    profile = tf_libra.BackwardProfile.from_arrays([10_000] * 60, [1e-4] * 60)
    for strategy in (strategies.Wfbp(), strategies.SynEasgd(), strategies.LibraM()):
        plan = tf_libra.make_plan(profile, COST, strategy)
        simulated.clear()
        assert len(explain(profile, plan, COST).groups) == len(plan.groups)
        assert len(simulated) == 1


def test_no_single_change_within_the_allowed_set_improves_the_exact_plan():
    strategy = strategies.Libra(threads=(1, 2, 4), max_groups=6, exact=True)
    plan = tf_libra.make_plan(PROFILE, COST, strategy)
    for entry in explain(PROFILE, plan, COST).groups:
        for alternative in entry.alternatives:
            if alternative.change not in ("r = 8",):
                assert alternative.seconds >= 0, alternative


def test_single_group_has_a_reason():
    cost = dataclasses.replace(COST, hop_latency=1e-2)
    plan = tf_libra.make_plan(PROFILE, cost, strategies.Libra(threads=(1, 2)))
    explanation = explain(PROFILE, plan, cost)
    assert len(plan.groups) == 1
    assert "does not pay for another startup overhead" in str(explanation).replace("\n", " ")


def test_forbidden_alternative_has_no_seconds():
    cost = dataclasses.replace(COST, compute=(1.0, 0.2))
    plan = tf_libra.make_plan(PROFILE, cost, strategies.Wfbp(num_threads=4))
    alternatives = explain(PROFILE, plan, cost).groups[0].alternatives
    assert [a.seconds for a in alternatives if a.change == "r = 8"] == [None]


def test_wait_for_previous_all_reduce_is_named():
    plan = tf_libra.make_plan(PROFILE, COST, strategies.Wfbp(num_threads=1))
    starts = [entry.starts for entry in explain(PROFILE, plan, COST).groups]
    assert starts[0] == "It starts as soon as its last gradient is produced."
    assert "waits" in starts[1]


def test_bottleneck_sums_contention_and_exposed_time() -> None:
    assert bottleneck((GroupCost(2e-3, 0.0), GroupCost(0.0, 1e-3))) == 0
    assert bottleneck((GroupCost(2e-3, 0.0), GroupCost(1e-3, 1.5e-3))) == 1
    assert bottleneck((GroupCost(1e-3, 0.0), GroupCost(0.0, 1e-3))) == 0


def test_group_costs_and_computation_add_up_to_backward() -> None:
    plan = tf_libra.make_plan(PROFILE, COST, tf_libra.strategies.Wfbp(num_threads=4))
    timeline = tf_libra.simulate(PROFILE, plan, COST)
    found = group_costs(PROFILE, plan, timeline, COST)
    assert sum(cost.seconds for cost in found) + PROFILE.compute_after[0] == pytest.approx(
        timeline.backward_seconds
    )
