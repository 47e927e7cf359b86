"""Steps of many plans in one call against `simulate`, plan by plan."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.drawing import num_examples
from tests.planning.data_parallel import reference
from tests.simulation.test_api import STOPS, THREADS, THREADS_OF_ALL
from tf_libra import simulate
from tf_libra.cost_model import ProcessorModel
from tf_libra.planning.strategy import groups_from_stops
from tf_libra.simulation.vectorized import vectorized_steps
from tf_libra.specs.plan import Plan


@settings(max_examples=num_examples(100), deadline=None)
@given(st.data(), reference.profiles(updates=True), reference.lawful_costs(THREADS), st.booleans())
def test_vectorized_steps_equal_simulate(data, profile, cost, by_work):
    if by_work:
        cost = ProcessorModel(cost.num_workers, 1e-4, 6e-10, 2e-9, lane_gap=0.1)
    plans = st.tuples(STOPS[len(profile.tensors)], THREADS_OF_ALL)
    drawn = data.draw(st.lists(plans, min_size=1, max_size=5))
    stops = [ends for ends, _ in drawn]
    threads = [list(lanes[: len(ends)]) for ends, lanes in drawn]
    steps = vectorized_steps(profile, cost, stops, threads)
    for found, ends, lanes in zip(steps.tolist(), stops, threads, strict=True):
        plan = Plan.for_profile(profile, groups_from_stops(ends, lanes), cost.num_workers, "x")
        assert found == pytest.approx(
            simulate(profile, plan, cost).step_seconds, rel=1e-9, abs=1e-12
        )
