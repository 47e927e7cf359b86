"""Gathers under the next forward pass, against tasks of the event simulator and known bounds."""

import dataclasses
import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_libra
from tests.drawing import num_examples
from tests.planning.data_parallel import reference
from tf_libra.simulation import simulate
from tf_libra.simulation.event_simulator import Task, simulate_tasks
from tf_libra.specs.plan import TensorGroup


def with_forward(profile, data):
    """Returns the profile with times of the forward pass and updates."""
    count = len(profile.tensors)
    seconds = st.lists(st.sampled_from([0.0, 1e-3, 0.02, 1.0]), min_size=count, max_size=count)
    forward, updates = data.draw(seconds), data.draw(seconds)
    return dataclasses.replace(
        profile,
        tensors=tuple(
            dataclasses.replace(tensor, forward_seconds=f, update_seconds=u)
            for tensor, f, u in zip(profile.tensors, forward, updates, strict=True)
        ),
    )


def gathers_of(edges, threads):
    """Returns gathers between edges, which ascend from 0."""
    pairs = list(zip(itertools.pairwise(edges), threads, strict=True))
    return tuple(TensorGroup(start, stop, r) for (start, stop), r in reversed(pairs))


def plans(profile, cost, data, threads=(1, 2, 4)):
    """Returns a plan of wfbp's reduce-scatters, with drawn gathers."""
    count = len(profile.tensors)
    inner = data.draw(st.sets(st.integers(1, count - 1))) if count > 1 else set()
    edges = [0, *sorted(inner), count]
    chosen = [data.draw(st.sampled_from(threads)) for _ in edges[1:]]
    plan = tf_libra.make_plan(profile, cost, "wfbp")
    return dataclasses.replace(plan, gathers=gathers_of(edges, chosen))


def simulate_by_tasks(profile, plan, cost):
    """Returns the ends of gathers and layers, in seconds since the forward pass began."""
    phase = cost.one_phase()
    count = len(plan.gathers)
    tasks, paces = [], []
    for index, gather in enumerate(plan.gathers):
        size, r = plan.gather_bytes[index], gather.num_threads
        launched = float(phase.overlapped_all_reduce(size, r)) > 0
        tasks.append(Task("gather", 1.0 if launched else 0.0, after=(index - 1,) if index else ()))
        paces.append(
            (
                1 / float(phase.overlapped_all_reduce(size, r)) if launched else 1.0,
                1 / float(phase.exclusive_all_reduce(size, r)) if launched else 1.0,
                float(phase.mean_compute_rate(size, r)),
            )
        )
    for index, gather in enumerate(plan.gathers):
        seconds = math.fsum(
            tensor.forward_seconds for tensor in profile.tensors[gather.start : gather.stop]
        )
        before = (count + index - 1,) if index else ()
        tasks.append(Task("layers", seconds, after=(index, *before)))

    def rates(running):
        gather = next((index for index in running if index < count), None)
        layers = next((index for index in running if index >= count), None)
        found = {}
        if gather is not None:
            found[gather] = paces[gather][0 if layers is not None else 1]
        if layers is not None:
            found[layers] = 1.0 if gather is None else paces[gather][2]
        return found

    spans = simulate_tasks(tasks, rates)
    return [span.stop_seconds for span in spans[:count]], [s.stop_seconds for s in spans[count:]]


@settings(max_examples=num_examples(150), deadline=None)
@given(st.data(), reference.profiles(max_tensors=6), reference.any_costs((1, 2, 4)))
def test_gathers_and_layers_are_those_of_the_event_simulator(data, profile, cost):
    profile = with_forward(profile, data)
    plan = plans(profile, cost, data)
    timeline = simulate(profile, plan, cost)
    gathered, computed = simulate_by_tasks(profile, plan, cost)
    begin = timeline.boundary_seconds
    scale = begin + computed[-1]
    for found, wanted in ((timeline.gathers, gathered), (timeline.forward, computed)):
        for span, end in zip(found, wanted, strict=True):
            assert span.end_seconds == pytest.approx(begin + end, rel=1e-9, abs=1e-9 * scale)
            assert span.ready_seconds <= span.start_seconds <= span.end_seconds
    alone = float(profile.forward_seconds.sum())
    delay = max(gathered[-1], computed[-1]) - alone
    assert timeline.forward_delay_seconds == pytest.approx(delay, rel=1e-9, abs=1e-9 * scale)
    assert timeline.step_seconds == begin + timeline.forward_delay_seconds


@settings(max_examples=50, deadline=None)
@given(st.data(), reference.profiles(max_tensors=6), reference.any_costs((1, 2, 4)))
def test_reduce_scatters_take_half_and_ranks_update_their_part(data, profile, cost):
    profile = with_forward(profile, data)
    plan = plans(profile, cost, data)
    whole = dataclasses.replace(plan, gathers=())
    timeline = simulate(profile, plan, cost)
    half = simulate(profile.with_owned_updates(cost.num_workers), whole, cost.one_phase())
    assert timeline.stages == half.stages
    assert timeline.boundary_seconds == half.step_seconds


@settings(max_examples=num_examples(100), deadline=None)
@given(st.data(), reference.profiles(max_tensors=6), reference.any_costs((1, 2, 4)))
def test_groups_whose_updates_stay_whole_are_all_reduced_and_not_gathered(data, profile, cost):
    profile = with_forward(profile, data)
    plan = plans(profile, cost, data)
    every = simulate(profile, plan, cost, profile.names)
    usual = simulate(profile, dataclasses.replace(plan, gathers=()), cost)
    assert (every.stages, every.boundary_seconds) == (usual.stages, usual.step_seconds)
    scale = every.step_seconds + float(profile.forward_seconds.sum())
    assert every.forward_delay_seconds == pytest.approx(0.0, abs=1e-9 * scale)
    # Without computation, each group of one tensor takes its own time.
    tensors = [
        dataclasses.replace(tensor, compute_seconds=0.0, update_seconds=0.0)
        for tensor in profile.tensors
    ]
    idle = dataclasses.replace(profile, tensors=tuple(tensors))
    whole = data.draw(st.sets(st.sampled_from(profile.names)))
    timeline, phase = simulate(idle, plan, cost, whole), cost.one_phase()
    alone = [
        float((cost if name in whole else phase).exclusive_all_reduce(size, group.num_threads))
        for name, size, group in zip(idle.names, plan.num_bytes, plan.groups, strict=True)
    ]
    assert timeline.backward_seconds == pytest.approx(sum(alone), rel=1e-9)
    for gather, span in zip(plan.gathers, timeline.gathers, strict=True):
        is_left = whole.issuperset(idle.names[gather.start : gather.stop])
        assert not is_left or span.start_seconds == span.end_seconds


def test_forward_pass_of_unknown_layers_is_the_rest_of_the_step():
    profile = tf_libra.BackwardProfile.from_arrays([4, 4], [1.0, 3.0])
    assert profile.forward_seconds.tolist() == [0.0, 0.0]
    known = dataclasses.replace(profile, rest_seconds=2.0)
    assert known.forward_seconds.tolist() == [0.5, 1.5]
    measured = tf_libra.BackwardProfile.from_arrays([4, 4], [1.0, 3.0], forward_seconds=[0.0, 2.0])
    assert dataclasses.replace(measured, rest_seconds=9.0).forward_seconds.tolist() == [0.0, 2.0]
    assert measured.with_batch(2).forward_seconds.tolist() == [0.0, 4.0]
    assert tf_libra.BackwardProfile.from_json(measured.to_json()) == measured
