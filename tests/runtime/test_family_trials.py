"""Schedule and outcome of trials of strategies of several kinds."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_libra.model_parallel.planning.burst import measured_counts, possible_counts
from tf_libra.model_parallel.runtime import burst_planner, one_rank_planner
from tf_libra.planning.one_worker import CLEARLY_SLOWER, OneWorkerComparison
from tf_libra.runtime.family_prediction import Reference
from tf_libra.runtime.family_trials import (
    MIN_ROUNDS,
    NUM_ROUNDS,
    STEPS_PER_TURN,
    choose_fastest,
    combine_ranks,
    make_schedule,
    most_strategies,
)
from tf_libra.runtime.step_profiler import CHECKED_STEPS
from tf_libra.runtime.strategy_kinds import Links
from tf_libra.strategies import Auto, DeepPool

NAMES = ("first", "second", "third")
MAX_STEPS = Auto.family_steps


def test_every_strategy_has_a_turn_in_every_round() -> None:
    schedule, steps_per_turn = make_schedule(NAMES, Auto.family_steps)
    assert steps_per_turn == STEPS_PER_TURN
    rounds = [schedule[i : i + 3] for i in range(0, len(schedule), 3)]
    assert len(rounds) == NUM_ROUNDS
    assert all(Counter(turns) == Counter(NAMES) for turns in rounds)
    assert rounds[0] == NAMES and rounds[1] == NAMES[::-1]


@given(st.integers(0, 140), st.integers(1, 4))
def test_turns_end_within_the_steps_of_all_trials_if_two_short_rounds_do(
    num_steps: int, count: int
) -> None:
    schedule, steps_per_turn = make_schedule(("first", *"abc")[:count], MAX_STEPS - num_steps)
    assert len(schedule) >= MIN_ROUNDS * count
    used = num_steps + len(schedule) * steps_per_turn
    assert used <= MAX_STEPS or (len(schedule), steps_per_turn) == (MIN_ROUNDS * count, 3)


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 7, 8, 9, 10, 16, 32, 64, 100])
def test_trials_of_many_ranks_end_within_their_steps(num_ranks: int) -> None:
    """All strategies measure as much as they may, and no computation takes any time."""
    others = ["one-rank", "spp", "deeppool"]
    num_steps = Auto.tuning_steps + 1 + CHECKED_STEPS
    num_steps += one_rank_planner._STEPS * min(num_ranks, one_rank_planner._MOST_RANKS)
    compared = OneWorkerComparison(num_ranks, 1e-4, 1e-4)
    reference = Reference(compared, 1e-4, Links(num_ranks, 1e9, 0.0, 0.0))
    assert not reference.describe_late(Auto.family_seconds / 3, num_plans=2)  # tuning takes 40 s
    counts = measured_counts(possible_counts(DeepPool(), num_ranks, 64 * num_ranks))
    num_steps += 2 * burst_planner._STEPS * len(counts)
    num_steps += len(others)  # that repeat a step
    assert most_strategies(MAX_STEPS - num_steps) > len(others)
    schedule, steps_per_turn = make_schedule(("first", *others), MAX_STEPS - num_steps)
    assert num_steps + len(schedule) * steps_per_turn <= MAX_STEPS


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
