"""Without training, `auto` plans as the strategy that is predicted the shortest step."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_libra
from tests.planning.data_parallel import reference
from tf_libra import strategies

THREADS = (1, 2)


@settings(max_examples=15, deadline=None)
@given(st.booleans(), st.data(), reference.any_costs(THREADS))
def test_plan_has_the_shortest_prediction(updates, data, cost):
    profile = data.draw(reference.profiles(updates=updates))
    auto = strategies.Auto(threads=THREADS, contention=1.5)
    plan = tf_libra.make_plan(profile, cost, auto)
    others = {n: tf_libra.make_plan(profile, cost, other) for n, other in auto.others().items()}
    steps = [tf_libra.simulate(profile, other, cost).step_seconds for other in others.values()]
    found = tf_libra.simulate(profile, plan, cost)
    assert found.step_seconds <= min(steps) * (1 + 1e-9)
    assert plan.predicted_seconds == found.backward_seconds
    [note] = [note for note in plan.notes if note.startswith(f"of {len(others)} strategies, ")]
    chosen = others[note.split(", ")[1].split()[0]]
    assert plan.groups == chosen.groups


def test_other_strategies_receive_their_arguments():
    others = strategies.Auto(threads=(2, 4), streams=(3, 1), contention=2.0).others()
    assert set(others) == set(strategies.BY_NAME) - {"auto", "dear"}
    assert others["libra"].threads == (2, 4)
    assert others["wfbp"].num_threads == 2
    assert others["asc-wfbp"].contention == 2.0
    assert (others["aiacc"].streams, others["aiacc"].threads) == ((1, 3), (2,))
    assert strategies.Auto(streams=(3, 1)).num_streams == 3
    assert strategies.Auto(streams=(1,)).num_streams == 2  # those of asc-wfbp


@pytest.mark.parametrize(
    ("given", "threads", "lanes"),
    [
        ({}, (1, 2), 8),
        ({"streams": (1, 2)}, (1, 2, 4), 8),
        ({"streams": (1,)}, (1, 2, 4), 4),
        ({"threads": (1,)}, (1,), 4),
        ({"threads": (2, 3), "streams": (16,)}, (2,), 32),
    ],
)
def test_many_streams_have_fewer_threads_each(given, threads, lanes):
    auto = strategies.Auto(**given)
    assert auto.others()["aiacc"].threads == threads
    # Those of asc-wfbp's two streams, whose threads are the fewest, are among them.
    assert auto.num_lanes == lanes


def test_streams_include_those_of_aiacc():
    assert strategies.Auto().others()["aiacc"] == strategies.Aiacc()


def test_error_names_why_no_strategy_has_a_plan():
    profile = tf_libra.BackwardProfile.from_arrays([8, 8], [1e-3, 1e-3])
    impossible = tf_libra.ContentionModel(2, 0.0, (0.5, 0.5), (1e9, 0, 0), (1e9, 0, 0))
    with pytest.raises(ValueError, match="r = 4"):
        tf_libra.make_plan(profile, impossible, strategies.Auto(threads=(4,)))


@pytest.mark.parametrize(
    ("streams", "message"),
    [
        ((), "at least one number of streams"),
        ((0,), "streams must be from 1"),
        (2, "must be a list"),
    ],
)
def test_wrong_streams_are_named(streams, message):
    with pytest.raises(ValueError, match=message):
        strategies.Auto(streams=streams)
