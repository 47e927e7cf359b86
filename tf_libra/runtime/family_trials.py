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
MAX_UNLIKE = 150
"""Steps in which ranks have unlike arguments, after which only data parallelism trains."""
MAX_MEASURED_PER_RANK = 50
"""Steps per rank after which a strategy that still measures is left out."""
STEPS_PER_TURN = 4
"""Steps of a turn. The first brings variables up to date, and does not count."""
_LEAST_STEPS_PER_TURN = 3
LEAST_STEPS = MIN_ROUNDS * _LEAST_STEPS_PER_TURN
"""Least steps of a strategy in all of its turns."""
CLOSE = 1.25
"""Ratio of two strategies' steps up to which final turns compare them.

A step that can be undone takes longer than one after trials: Python calls its computations one by
one, which took 18 % of a pipeline's step."""
FINAL_STEPS = 2 * LEAST_STEPS
"""Steps that the first turns leave for final turns, which compare two strategies at least."""
CONTRADICTION = 1.15
"""Ratio of a step in trials to its prediction from which on links are measured again."""
LEAST_LINK_SHARE = 0.25
"""Share of a predicted step that waits for links from which on links may explain this ratio."""
REFERENCE_STEPS = 5
"""Steps of data parallelism that are timed before repeated trials. The first does not count."""


def make_schedule(
    names: Sequence[str], steps_left: int, most_rounds: int = NUM_ROUNDS
) -> tuple[tuple[str, ...], int]:
    """Returns the strategy of each turn, every other round in reverse order, and a turn's steps.

    Args:
      names: the strategies.
      steps_left: steps of the budget that tuning and measurements have left; if they are too few,
        there are as few turns as possible.
      most_rounds: most rounds, `MIN_ROUNDS` at least.
    """
    steps_per_turn = STEPS_PER_TURN
    if steps_left < MIN_ROUNDS * STEPS_PER_TURN * len(names):
        steps_per_turn = _LEAST_STEPS_PER_TURN
    fitting = steps_left // (steps_per_turn * len(names))
    turns: list[str] = []
    for number in range(min(max(fitting, MIN_ROUNDS), most_rounds)):
        turns += names if number % 2 == 0 else reversed(names)
    return tuple(turns), steps_per_turn


def most_strategies(steps_left: int) -> int:
    """Returns how many strategies have turns within a number of steps."""
    return steps_left // LEAST_STEPS


SURPLUS = "trials have no steps left for its turns, and the others are predicted to be faster"
"""Reason of strategies beyond `most_strategies`."""

UNTIMED = "trials ended before its turns, and nothing predicts its step"
"""Reason of a strategy that was not timed."""

UNLIKE = (
    f"in {MAX_UNLIKE} steps, ranks had unlike arguments, or other values that they compute with"
)
"""Reason of strategies for which ranks need the same kinds of arguments, and the same values."""

SEVERAL = "the script ran several steps in one graph before trials had ended"
"""Reason of strategies that run single steps."""


def describe_unmeasured(num_steps: int) -> str:
    """Returns why a strategy is left out that measures the first arguments alone."""
    return (
        f"its measurements have not ended after {num_steps} steps, for too few of them had the"
        " shapes and Python values of the first one"
    )


class Turns:
    """Turns of strategies, whose steps train and are timed on this rank.

    Attributes:
        seconds: seconds of the steps that count, by strategy.
        total_seconds: seconds of all steps.
        have_begun: whether strategies take turns, or have done so.
        have_ended_early: whether turns are left out that were to follow.
        are_slow: whether no further round begins because turns have taken too long.
    """

    def __init__(
        self, names: Sequence[str] = (), steps_left: int = 0, most_rounds: int = NUM_ROUNDS
    ) -> None:
        """Begins with the first turn of the first strategy.

        Args:
            names: the strategies; none before there are turns.
            steps_left: see `make_schedule`.
            most_rounds: see `make_schedule`.
        """
        made = make_schedule(names, steps_left, most_rounds) if names else ((), 1)
        schedule, self._steps_per_turn = made
        self._left = list(schedule)
        self._step = 0  # of the present turn
        self.have_begun, self.have_ended_early, self.are_slow = bool(names), False, False
        self.seconds: dict[str, list[float]] = {name: [] for name in names}
        self.total_seconds = 0.0

    @property
    def next(self) -> str:
        """The strategy of the next step; empty without further turns."""
        return self._left[0] if self._left else ""

    def record(self, seconds: float) -> None:
        """Records a step of the next strategy. The first of a turn does not count."""
        self.total_seconds += seconds
        if self._step > 0:
            self.seconds[self.next].append(seconds)
        self._step += 1
        if self._step == self._steps_per_turn:
            self._step = 0
            del self._left[0]

    def end_after_round(self) -> None:
        """Lets no further round begin."""
        self.are_slow = True
        if self._step == 0 and any(self.seconds.values()):
            del self._left[len(self._left) % len(self.seconds) :]

    def end(self) -> None:
        """Lets no further step belong to a turn."""
        self.have_ended_early |= bool(self._left)
        self._left.clear()

    def leave_out(self, name: str) -> None:
        """Goes on with the turns of the other strategies, whose seconds stay."""
        if self.next == name:
            self._step = 0
        self.seconds.pop(name, None)
        if len(self.seconds) < 2:
            self.end()
        self._left = [other for other in self._left if other != name]


def contradicts_links(measured: float, predicted: float, link_share: float) -> bool:
    """Returns whether a step shows that links are not as measured.

    Args:
      measured: seconds of the step.
      predicted: predicted seconds.
      link_share: share of these in which ranks wait for links.
    """
    ratio = max(measured, predicted) / min(measured, predicted)
    return ratio > CONTRADICTION and link_share >= LEAST_LINK_SHARE


def count_trials(num_strategies: int) -> int:
    """Returns the number of timed steps of all strategies."""
    return NUM_ROUNDS * STEPS_PER_TURN * num_strategies


def combine_ranks(everyone: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, float]:
    """Returns the median step of each timed strategy, on the slowest rank.

    Args:
      everyone: by rank, the seconds of the same steps of each strategy.
    """
    return {
        name: float(np.median(np.max([rank[name] for rank in everyone], axis=0)))
        for name, seconds in everyone[0].items()
        if seconds
    }


def find_close(seconds: Mapping[str, float], fastest: str) -> list[str]:
    """Returns strategies that may be as fast as one that is chosen, the fastest first."""
    ratios = {name: taken / seconds[fastest] for name, taken in seconds.items() if name != fastest}
    close = [name for name, ratio in ratios.items() if 1 / CLOSE <= ratio <= CLOSE]
    return sorted(close, key=lambda name: ratios[name])


def choose_fastest(seconds: Mapping[str, float]) -> str:
    """Returns the fastest strategy; the first unless another is clearly faster."""
    first = next(iter(seconds))
    fastest = min(seconds, key=lambda name: seconds[name])
    return fastest if seconds[first] > CLEARLY_SLOWER * seconds[fastest] else first
