"""A simulated machine on which steps are paced: what is known of it, and what became of a run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tf_libra.background_jobs.throttle import CYCLE, NUM_BASELINE_STEPS, Throttle

_SLOWER = 1.38  # how much, while cores are slow by themselves


@dataclass(frozen=True)
class Machine:
    """Steps of one length, but for what disturbs them.

    Attributes:
        step_seconds: of a step alone on fast cores.
        noise: of steps, the standard deviation of their logarithm.
        phase_seconds: after how long cores change between fast and slow, in the mean; 0: never.
    """

    step_seconds: float = 0.1
    noise: float = 0.0
    phase_seconds: float = 0.0

    def steps(self, count: int, random: np.random.Generator) -> list[float]:
        """Returns the times of steps without a background."""
        work = self.step_seconds * np.exp(self.noise * random.standard_normal(count))
        work = work.tolist()  # one by one, Python's numbers are quicker
        if not self.phase_seconds:
            return work
        taken, left, is_slow = [], 0.0, False
        for to_do in work:
            seconds = 0.0
            while to_do > 0:
                if left <= 0:
                    left, is_slow = random.exponential(self.phase_seconds), not is_slow
                speed = _SLOWER if is_slow else 1.0
                part = min(left, to_do * speed)
                left, to_do, seconds = left - part, to_do - part / speed, seconds + part
            taken.append(seconds)
        return taken


@dataclass(frozen=True)
class ThrottledRun:
    """The result of a simulated run.

    Attributes:
        slowdown: by how much all steps together were longer than without a background.
        shares: by rank, of steps concurrent with its background.
        runs: of rank 0, by cycle, steps concurrent with its background.
    """

    slowdown: float
    shares: tuple[float, ...]
    runs: tuple[int, ...]


def throttled(
    ranks: Sequence[Throttle],
    cost: float | Callable[[int], float],
    num_cycles: int,
    machine: Machine | None = None,
    seed: int = 0,
) -> ThrottledRun:
    """Ranks that wait for each other in each step, and a background of each.

    Args:
        ranks: what decides, by rank.
        cost: what a step loses to concurrent backgrounds on all ranks, as a share of it; by its
            number, where it changes. Some of the ranks cost their part of it.
        num_cycles: how long.
        machine: on which; one that nothing disturbs by default.
        seed: of what is random.
    """
    random = np.random.default_rng(seed)
    count = num_cycles * CYCLE
    baseline = (machine or Machine()).steps(count, random)
    lost, overlapped, runs = 0.0, [0] * len(ranks), []
    for number, seconds in enumerate(baseline):
        now = [rank.runs for rank in ranks]
        if any(now):
            each = (cost(number) if callable(cost) else cost) / len(ranks)
            more = seconds * each * sum(now)
            lost += more
            overlapped = [steps + is_one for steps, is_one in zip(overlapped, now, strict=True)]
        else:
            more = 0.0
        for rank in ranks:
            rank.record(seconds + more)
        if number % CYCLE == NUM_BASELINE_STEPS:
            runs.append(round(ranks[0].duty * (CYCLE - NUM_BASELINE_STEPS)))
    return ThrottledRun(
        lost / sum(baseline), tuple(steps / count for steps in overlapped), tuple(runs)
    )
