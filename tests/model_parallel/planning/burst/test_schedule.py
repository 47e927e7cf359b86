"""Schedules of arbitrary decisions, not only of planners', compared with the definition."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_libra
from tests.drawing import num_examples
from tests.model_parallel.planning.burst import reference
from tf_libra.model_parallel.planning.burst.schedule import make_schedule, reschedule
from tf_libra.model_parallel.planning.burst.strategy import BlockRun, ChainRun, EdgeRun


@st.composite
def decided(draw, cases):
    """Draw a profile, its model and a decision in the forms of planners and of `reference`."""
    scaling, model = draw(cases)
    counts = scaling.device_counts
    decision = {}

    def run(link, source, target, cap):
        if link is None:
            return EdgeRun(scaling.edges.index((source, target)))
        if link[0] == "chain":
            return chain(link, [source, *link[2], target], cap)
        chains = [
            index
            for index, branch in enumerate(link[1])
            if branch is not None and scaling.move_seconds is not None
        ]
        widths, parallel = [cap], []
        if chains:
            parallel = draw(st.lists(st.sampled_from(chains), unique=True))[: len(link[1]) - 1]
            possible = itertools.product(counts, repeat=len(parallel) + 1)
            fitting = [allotment for allotment in possible if sum(allotment) <= cap]
            if parallel and fitting:
                widths = draw(st.sampled_from(fitting))
            else:
                parallel = []
        decision[id(link)] = tuple(parallel)
        main = [index for index in range(len(link[1])) if index not in parallel]
        return BlockRun(
            tuple(run(link[1][index], source, target, widths[0]) for index in main),
            tuple(
                run(link[1][index], source, target, width)
                for index, width in zip(parallel, widths[1:], strict=True)
            ),
            tuple(widths),
        )

    def chain(link, ends, cap):
        allowed = [index for index, count in enumerate(counts) if count <= cap]
        own = {layer: draw(st.sampled_from(allowed)) for layer in link[2]}
        decision.update(own)
        links = tuple(
            None if None in pair else run(inner, *pair, cap)
            for inner, pair in zip(link[1], itertools.pairwise(ends), strict=True)
        )
        return ChainRun(tuple(link[2]), tuple(own.values()), links)

    _, _, layers = model
    return scaling, model, chain(model, [None, *layers, None], counts[-1]), decision


@st.composite
def nested(draw):
    """Draw parallel lanes, some of them lanes of a block in a branch of another block."""

    def chain(*layers, links=()):
        return ("chain", [*links, *[None] * (len(layers) + 1 - len(links))], list(layers))

    inner = ("block", [chain(3), chain(4, 5), None])
    outer = ("block", [chain(1), chain(2, 6, links=[None, inner]), chain(7), None])
    model = ("chain", [None, outer, None], [0, 8])
    edges, counts = reference.model_edges(model), (1, 2, 3, 8)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def times(*shape):
        return rng.integers(1, 5, shape) / 4

    own = [times(9, len(counts)) for _ in range(2)]
    between = [times(len(edges), len(counts), len(counts)) for _ in range(2)]
    return tf_libra.ScalingProfile.graph(counts, *own, edges, *between), model


every = decided(st.one_of(reference.chains(), reference.branching(), nested()))


@settings(max_examples=num_examples(150))
@given(every)
def test_a_decision_takes_what_it_is_defined_to_take(case):
    scaling, model, run, decision = case
    plan = make_schedule(scaling, run, "by hand", 7.0, ("a note",))
    seconds, amplified = reference.judge(scaling, model, decision)
    assert plan.iteration_seconds == pytest.approx(seconds, rel=1e-9, abs=1e-12)
    assert plan.amplification == pytest.approx(amplified, rel=1e-9)
    at = [decision[layer] for layer in range(scaling.num_layers)]
    assert plan.num_devices == tuple(scaling.device_counts[position] for position in at)
    assert (plan.strategy, plan.max_amplification, plan.notes) == ("by hand", 7.0, ("a note",))
    assert plan.profile_fingerprint == scaling.fingerprint


def layers_of(run):
    if isinstance(run, ChainRun):
        return [*run.layers, *(layer for link in run.links for layer in layers_of(link))]
    if isinstance(run, BlockRun):
        return [layer for branch in (*run.main, *run.parallel) for layer in layers_of(branch)]
    return []


def blocks_of(run):
    if isinstance(run, ChainRun):
        return [block for link in run.links for block in blocks_of(link)]
    if isinstance(run, BlockRun):
        return [
            run,
            *(block for inner_run in (*run.main, *run.parallel) for block in blocks_of(inner_run)),
        ]
    return []


@settings(max_examples=num_examples(150))
@given(every)
def test_devices_do_one_thing_at_a_time_and_what_is_written_is_what_counts(case):
    scaling, _, run, _ = case
    plan = make_schedule(scaling, run, "by hand", None)
    used = {
        layer: set(range(first, first + count))
        for layer, (first, count) in enumerate(
            zip(plan.first_devices, plan.num_devices, strict=True)
        )
    }
    assert set.union(*used.values()) <= set(range(scaling.device_counts[-1]))
    for block in blocks_of(run):
        main = [layer for branch in block.main for layer in layers_of(branch)]
        lanes = [main, *map(layers_of, block.parallel)]
        devices = [set().union(*(used[layer] for layer in lane)) for lane in lanes]
        assert len(set().union(*devices)) == sum(map(len, devices))
    spans = [span for span in plan.spans if span.seconds > 1e-9]
    for earlier, other in itertools.combinations(spans, 2):
        if max(earlier.start_seconds, other.start_seconds) < (
            min(earlier.stop_seconds, other.stop_seconds) - 1e-9
        ):
            assert not used[earlier.layer] & used[other.layer]
    occupied = sum(plan.num_devices[span.layer] * span.seconds for span in plan.spans)
    assert plan.device_seconds == pytest.approx(occupied, rel=1e-9, abs=1e-9)
    for span in plan.spans:
        ends = [plan.spans[index].stop_seconds for index in span.after]
        assert span.start_seconds == max(ends, default=0.0)


@settings(max_examples=num_examples(100))
@given(every, st.integers(0, 2**32 - 1))
def test_by_another_profile_it_is_what_that_makes_of_the_same_decision(case, seed):
    scaling, _, run, _ = case
    rng = np.random.default_rng(seed)

    def other(values):
        return None if values is None else rng.integers(0, 4, values.shape) / 4

    times = ("compute_seconds", "synchronize_seconds", "transition_seconds", "move_seconds")
    profile = dataclasses.replace(
        scaling, **{name: other(getattr(scaling, name)) for name in times}
    )
    found = reschedule(profile, make_schedule(scaling, run, "by hand", None))
    expected = make_schedule(profile, run, "by hand", None)
    assert found.fingerprint == expected.fingerprint
    assert found.profile_fingerprint == profile.fingerprint
    for name in ("iteration_seconds", "device_seconds", "amplification", "transition_seconds"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-9, abs=1e-9)
    assert [span.start_seconds for span in found.spans] == pytest.approx(
        [span.start_seconds for span in expected.spans], rel=1e-9, abs=1e-9
    )
