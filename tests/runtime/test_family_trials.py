"""Schedule and outcome of trials of strategies of several kinds."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tf_libra.planning.one_worker import CLEARLY_SLOWER
from tf_libra.runtime.family_trials import (
    MAX_STEPS,
    MIN_ROUNDS,
    NUM_ROUNDS,
    STEPS_PER_TURN,
    choose_fastest,
    combine_ranks,
    make_schedule,
)

NAMES = ("first", "second", "third")


def test_every_strategy_has_a_turn_in_every_round() -> None:
    schedule, steps_per_turn = make_schedule(NAMES)
    assert steps_per_turn == STEPS_PER_TURN
    rounds = [schedule[i : i + 3] for i in range(0, len(schedule), 3)]
    assert len(rounds) == NUM_ROUNDS
    assert all(Counter(turns) == Counter(NAMES) for turns in rounds)
    assert rounds[0] == NAMES and rounds[1] == NAMES[::-1]


@given(st.integers(0, 140), st.integers(1, 4))
def test_turns_end_within_the_steps_of_all_trials_if_two_short_rounds_do(
    num_steps: int, count: int
) -> None:
    schedule, steps_per_turn = make_schedule(("first", *"abc")[:count], num_steps)
    assert len(schedule) >= MIN_ROUNDS * count
    used = num_steps + len(schedule) * steps_per_turn
    assert used <= MAX_STEPS or (len(schedule), steps_per_turn) == (MIN_ROUNDS * count, 3)


def test_a_step_takes_as_long_as_on_the_slowest_rank() -> None:
    everyone = [{"a": [1.0, 5.0, 2.0], "b": [3.0]}, {"a": [4.0, 1.0, 2.0], "b": [1.0]}]
    assert combine_ranks(everyone) == {"a": 4.0, "b": 3.0}


@given(st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=3))
def test_chosen_strategy_is_the_fastest_or_the_first(seconds: list[float]) -> None:
    times = dict(zip(NAMES, seconds, strict=False))
    chosen = choose_fastest(times)
    assert times[chosen] <= CLEARLY_SLOWER * min(seconds)
    assert chosen == "first" or times[chosen] == min(seconds)
    if times["first"] <= CLEARLY_SLOWER * min(seconds):
        assert chosen == "first"
