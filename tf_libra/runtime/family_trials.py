"""Trials of strategies of several kinds: their order, and the fastest of them."""

from collections.abc import Mapping, Sequence

import numpy as np

from tf_libra.planning.one_worker import CLEARLY_SLOWER

FIRST = "data parallelism"
"""Name of the strategy that others are compared with."""
FAR_FASTER = 1.5
"""Ratio of a strategy's step to one of data parallelism from which on it is not tried."""
HOPELESS = 4.0
"""Upper bound of this ratio, by prediction, from which on no step is timed to know it."""
NUM_ROUNDS = 4
"""Rounds, in each of which every strategy has its turn; less if steps run short."""
MIN_ROUNDS = 2
"""Least rounds, one in each order."""
MAX_SECONDS = 20.0
"""Seconds of turns after which no further round begins."""
MAX_STEPS = 150
"""Steps of tuning, measurements and turns after which rounds are left out."""
MAX_SECONDS_OF_ALL = 60.0
"""Seconds of all these steps after which nothing is measured and no further round begins."""
MAX_MEASURED_PER_RANK = 50
"""Steps per rank after which a strategy that still measures is left out."""
STEPS_PER_TURN = 4
"""Steps of a turn. The first brings variables up to date, and does not count."""
_LEAST_STEPS_PER_TURN = 3


def make_schedule(names: Sequence[str], num_steps: int = 0) -> tuple[tuple[str, ...], int]:
    """Returns the strategy of each turn, every other round in reverse order, and a turn's steps.

    Args:
      names: the strategies.
      num_steps: steps that tuning and measurements have taken.
    """
    left, steps_per_turn = MAX_STEPS - num_steps, STEPS_PER_TURN
    if left < MIN_ROUNDS * STEPS_PER_TURN * len(names):
        steps_per_turn = _LEAST_STEPS_PER_TURN
    fitting = left // (steps_per_turn * len(names))
    turns: list[str] = []
    for number in range(min(max(fitting, MIN_ROUNDS), NUM_ROUNDS)):
        turns += names if number % 2 == 0 else reversed(names)
    return tuple(turns), steps_per_turn


def count_trials(num_strategies: int) -> int:
    """Returns the number of timed steps of all strategies."""
    return NUM_ROUNDS * STEPS_PER_TURN * num_strategies


def combine_ranks(everyone: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, float]:
    """Returns the median step of each strategy, whose steps take as long as on the slowest rank.

    Args:
      everyone: by rank, the seconds of the same steps of each strategy.
    """
    return {
        name: float(np.median(np.max([rank[name] for rank in everyone], axis=0)))
        for name in everyone[0]
    }


def choose_fastest(seconds: Mapping[str, float]) -> str:
    """Returns the fastest strategy; the first unless another is clearly faster."""
    first = next(iter(seconds))
    fastest = min(seconds, key=lambda name: seconds[name])
    return fastest if seconds[first] > CLEARLY_SLOWER * seconds[fastest] else first
