"""One worker that trains the joint batch: the alternative to N workers, and when it is faster.

N workers pay only if they train a step in less time than one worker trains the joint batch, which
computes N times as much and sends nothing.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated

from tf_libra.cost_model import CostModel
from tf_libra.internal import formatting
from tf_libra.internal.values import Count, NonNegative, Positive, Value, one_of
from tf_libra.simulation import simulate
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan

# Ratio of step times from which on one worker counts as faster: less may be noise.
CLEARLY_SLOWER = 1.03
# Largest factor on link rates or batch sizes that is considered, and its precision.
_MAX_FACTOR, _PRECISION = 1024.0, 1.01


# How the step of one worker is known, with the words for a factor that rests on it.
_WORDS = {"bound": "train at most", "predicted": "are predicted to train", "measured": "train"}


@dataclass(frozen=True)
class OneWorkerComparison(Value):
    """Steps of N workers under a plan, and of one worker on their joint batch.

    Attributes:
      num_workers: N, at least 2.
      step_seconds: step of N workers.
      one_worker_seconds: step of one worker; the largest one if it is only a bound.
      link_factor: factor on link rates from which on N workers are faster under this plan; 1 if
        they are now, None if no factor is known.
      batch_factor: the same for the batch size.
      evidence: "bound" if one worker takes at most as long, as computation grows at most in
        proportion to the batch; else "predicted" or "measured".
    """

    num_workers: Count
    step_seconds: NonNegative
    one_worker_seconds: NonNegative
    link_factor: Positive | None = None
    batch_factor: Positive | None = None
    evidence: Annotated[str, one_of(tuple(_WORDS))] = "bound"

    @property
    def speedup(self) -> float:
        """Factor by which N workers are faster than one, or its upper bound."""
        return self.one_worker_seconds / self.step_seconds

    @property
    def is_slower(self) -> bool:
        """True if one worker is clearly faster than N."""
        return self.step_seconds > CLEARLY_SLOWER * self.one_worker_seconds

    def describe(self) -> str:
        """Returns the comparison in one sentence, with what would change it if one worker wins."""
        at_most = " at most" if self.evidence == "bound" else ""
        text = (
            f"{self.num_workers} workers {_WORDS[self.evidence]} {_factor(self.speedup)} times as"
            f" fast as one: a step takes {formatting.time(self.step_seconds)}, one worker{at_most}"
            f" {formatting.time(self.one_worker_seconds)} for the joint batch"
        )
        return f"{text}; {self._remedy()}" if self.is_slower else text

    def _remedy(self) -> str:
        """Returns what would make N workers faster than one."""
        remedies = [
            text.format(_factor(factor, rounding=math.ceil))
            for text, factor in (
                ("links {} times as fast", self.link_factor),
                ("a batch {} times as large", self.batch_factor),
            )
            if factor is not None and factor > 1
        ]
        if not remedies:
            return "train with one worker, or with more examples per step"
        return f"with {' or '.join(remedies)}, {self.num_workers} workers are faster"


def _factor(value: float, rounding: Callable[[float], int] = round) -> str:
    """Formats a factor with two significant digits, or as a whole number from 10 on."""
    if value >= 10:
        return str(rounding(value))
    digits = 10.0 if value >= 1 else 100.0
    return f"{rounding(value * digits) / digits:g}"


def one_worker_seconds(profile: BackwardProfile, rest_seconds: float, num_workers: int) -> float:
    """Returns the largest step of one worker on the joint batch of N workers.

    Forward and backward computation take at most N times as long, and updates as long as before.

    Args:
      profile: backward computation and updates of one of N workers.
      rest_seconds: seconds of one of their steps outside backward and the updates.
      num_workers: N.
    """
    backward, updates = float(profile.compute_after[0]), float(profile.updates_before[-1])
    return num_workers * (rest_seconds + backward) + updates


def compare_with_one_worker(
    profile: BackwardProfile,
    plan: Plan,
    cost: CostModel,
    rest_seconds: float,
    measured_seconds: float | None = None,
    is_trusted: bool = True,
    alone_seconds: float | None = None,
) -> OneWorkerComparison | None:
    """Compares N workers under a plan with one worker on the joint batch.

    Args:
      profile: backward computation and updates of one of N workers.
      plan: plan of the N workers.
      cost: cost model; its number of workers is N.
      rest_seconds: seconds of a step outside backward and the updates.
      measured_seconds: measured step; None: as predicted.
      is_trusted: False if the model's predictions are too uncertain to say what would help.
      alone_seconds: measured step of one worker; None: its upper bound. Predictions for other
        links and batches are scaled to both measured steps.

    Returns:
      The comparison; None for one worker, or if the model cannot predict the plan.
    """
    if cost.num_workers == 1:
        return None

    def predict(rates: float = 1.0, batch: float = 1.0) -> tuple[float, float]:
        """Returns steps of one worker and of N, with factors on link rates and on the batch."""
        scaled, rest = profile.with_batch(batch), batch * rest_seconds
        step = rest + simulate(scaled, plan, cost.with_link_rate(rates)).step_seconds
        return one_worker_seconds(scaled, rest, cost.num_workers), step

    alone = one_worker_seconds(profile, rest_seconds, cost.num_workers)
    step, scale, evidence = measured_seconds, 1.0, "bound"
    try:
        if step is None or alone_seconds is not None:
            _, predicted = predict()
            step = predicted if step is None else step
        if alone_seconds is not None:
            scale = (alone_seconds / alone) / (step / predicted)
            alone, evidence = alone_seconds, "measured"
        compared = OneWorkerComparison(cost.num_workers, step, alone, evidence=evidence)
        if step <= alone:
            return replace(compared, link_factor=1.0, batch_factor=1.0)
        if not is_trusted:
            return compared

        def is_faster(rates: float = 1.0, batch: float = 1.0) -> bool:
            single, several = predict(rates, batch)
            return scale * single > several

        links = _least_factor(lambda factor: is_faster(rates=factor))
        batch = _least_factor(lambda factor: is_faster(batch=factor))
    except ValueError:
        return None
    return replace(compared, link_factor=links, batch_factor=batch)


def _least_factor(is_enough: Callable[[float], bool]) -> float | None:
    """Returns the least factor from 1 on that is enough; None up to `_MAX_FACTOR`."""
    low = high = 1.0
    while not is_enough(high):
        low, high = high, 2 * high
        if high > _MAX_FACTOR:
            return None
    while high > low * _PRECISION:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high
