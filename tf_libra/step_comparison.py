"""Step times of several training steps that take turns on all ranks.

The speed of a shared machine changes every few seconds. So a round holds one step of each kind, in
an order that is shuffled for every round and equal on all ranks; ratios are taken within rounds.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from scipy import special

from tf_libra import collectives
from tf_libra.coordination import current_job
from tf_libra.internal import formatting, validation

# Probability, on each side, that the true median is beyond the interval.
_ERROR = 0.025
# With fewer rounds the smallest and the largest ratio are no 95 % interval.
_MIN_ROUNDS = 6

Barrier = Callable[[str], None]


@dataclass(frozen=True)
class Speedup:
    """Ratio of two steps' times, paired by rounds.

    Attributes:
        median: median over the rounds; above 1 if the step is faster than the baseline.
        low: lower limit of the median's 95 % confidence interval.
        high: upper limit of this interval.
    """

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class StepComparison:
    """Result of `compare_steps`.

    Attributes:
        seconds: by name, the seconds of the slowest rank in each round.
    """

    seconds: Mapping[str, tuple[float, ...]]

    def speedup(self, name: str, baseline: str) -> Speedup:
        """Returns how many times as fast a step is as the baseline.

        Raises:
            ValueError: there is no step of one of these names.
        """
        for field, requested in (("name", name), ("baseline", baseline)):
            if requested not in self.seconds:
                known = ", ".join(map(repr, self.seconds))
                raise ValueError(f"{field} must be one of {known}, got {requested!r}")
        ratios = np.sort(np.divide(self.seconds[baseline], self.seconds[name]))
        # Order statistics: no assumption on the distribution of step times.
        below = special.bdtr(np.arange(len(ratios)), len(ratios), 0.5)
        first = int(np.searchsorted(below, _ERROR)) - 1
        return Speedup(float(np.median(ratios)), float(ratios[first]), float(ratios[-1 - first]))

    def describe(self, baseline: str) -> str:
        """Returns a line per step: speedup over the baseline with its interval, median, and name.

        Raises:
            ValueError: there is no step of this name.
        """
        lines = []
        for name, seconds in self.seconds.items():
            found = self.speedup(name, baseline)
            limits = "" if name == baseline else f"({found.low:.2f} to {found.high:.2f})"
            median = formatting.time(float(np.median(seconds)))
            lines.append(f"{found.median:5.2f} x {limits:<16} {median:>8}  {name}")
        return "\n".join(lines)


def compare_steps(
    steps: Mapping[str, Callable[[], Any]], num_rounds: int = 40, num_warm_up_rounds: int = 5
) -> StepComparison:
    """Measures training steps in turns; all ranks call it with steps of the same names.

    Every step of every round trains. A step that only some ranks take, such as one worker on the
    joint batch, returns immediately on the others; the ranks wait for each other before each step.

    Args:
        steps: functions without arguments, by name. Tensors that they return are awaited.
        num_rounds: rounds that count, at least 6.
        num_warm_up_rounds: rounds before these.

    Raises:
        ValueError: an argument is invalid, or the job is not known.
        tf.errors.OpError: a rank is gone or late.
    """
    validation.integer("num_rounds", num_rounds, minimum=_MIN_ROUNDS)
    validation.integer("num_warm_up_rounds", num_warm_up_rounds)
    if not steps:
        raise ValueError("steps must hold at least one step, got none")
    _, size = current_job.get_job().rank_and_size()
    if size > 1:
        collectives.connect()

    def barrier(name: str) -> None:
        if size > 1:
            collectives.all_reduce(tf.zeros([1]), range(size), f"compare_steps {name}")

    seconds = time_in_turns(list(steps.values()), num_rounds, num_warm_up_rounds, barrier)
    if size > 1:
        own = tf.constant(seconds[None])
        gathered = collectives.all_gather(own, range(size), "compare_steps seconds")
        seconds = gathered.numpy().max(axis=0)
    return StepComparison({name: tuple(seconds[:, i].tolist()) for i, name in enumerate(steps)})


def time_in_turns(
    steps: Sequence[Callable[[], Any]],
    num_rounds: int,
    num_warm_up_rounds: int,
    barrier: Barrier,
    seed: int = 0,
) -> NDArray[np.float64]:
    """Returns the seconds of this rank's steps, shape (rounds, steps), without the warm-up.

    Args:
        steps: functions without arguments. Tensors that they return are awaited.
        num_rounds: rounds that count.
        num_warm_up_rounds: rounds before these.
        barrier: waits for all ranks, called with a name that is used once.
        seed: seed of the order within rounds, equal on all ranks.
    """
    random = np.random.default_rng(seed)
    seconds = np.zeros((num_warm_up_rounds + num_rounds, len(steps)))
    for number, of_round in enumerate(seconds):
        for i in random.permutation(len(steps)):
            # No step is charged for the lag that the step before has left between the ranks.
            barrier(f"round {number} step {i}")
            of_round[i] = _time(steps[i])
    return seconds[num_warm_up_rounds:]


def _time(step: Callable[[], Any]) -> float:
    start = time.perf_counter()
    for value in tf.nest.flatten(step()):
        if isinstance(value, tf.Tensor):
            value.numpy()
    return time.perf_counter() - start
