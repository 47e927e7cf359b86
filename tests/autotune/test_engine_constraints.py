"""The conversion of plans that an engine cannot run as they are."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.autotune.machine import MODEL
from tf_libra.autotune.engine_constraints import runnable
from tf_libra.simulation import simulate
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan, TensorGroup

SIZES = (8, 12, 4, 20)
PROFILE = BackwardProfile.from_arrays(SIZES, (1e-3, 0.0, 2e-3, 1e-3))


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Cut between any two elements of four bytes, on up to three streams."""
    stops = list(itertools.accumulate(SIZES))
    cuts = draw(st.sets(st.integers(1, stops[-1] // 4 - 1), max_size=6))
    places = []
    for cut in sorted(4 * cut for cut in cuts):
        tensor = sum(stop <= cut for stop in stops)
        places.append((tensor, cut - (stops[tensor - 1] if tensor else 0)))
    edges = [(0, 0), *places, (len(SIZES), 0)]
    groups = tuple(
        TensorGroup(a, d + bool(e), draw(st.integers(1, 3)), draw(st.integers(0, 2)), b, e or None)
        for (a, b), (d, e) in itertools.pairwise(edges)
    )
    return Plan.for_profile(PROFILE, groups, 2, "by hand")


@given(plans(), st.integers(0, 9))
def test_what_comes_out_can_be_run_and_is_predicted(plan: Plan, num_lanes: int) -> None:
    found = runnable(plan, PROFILE, MODEL, num_lanes)
    assert found.num_streams == 1 or found.num_lanes <= num_lanes
    assert num_lanes or not found.cuts_tensors
    if found is not plan:
        assert len(found.notes) > len(plan.notes)
        assert found.predicted_seconds == pytest.approx(
            simulate(PROFILE, found, MODEL).backward_seconds
        )
    else:
        assert num_lanes or not plan.cuts_tensors


@given(plans())
def test_a_whole_tensor_is_in_the_group_of_its_end(plan: Plan) -> None:
    found = runnable(plan, PROFILE, MODEL, 0)
    threads = {}
    for group in plan.groups:
        for tensor in range(group.start, group.ended):
            threads[tensor] = group.num_threads
    for group in found.groups:
        assert {threads[i] for i in range(group.start, group.stop)} == {group.num_threads}
    assert len(found.groups) <= len(plan.groups)


def test_what_can_be_run_is_left_as_it_is() -> None:
    plan = Plan.for_profile(PROFILE, (TensorGroup(0, 4, 2),), 2, "by hand")
    assert runnable(plan, PROFILE, MODEL, 0) is plan
