"""A step of data parallelism that another strategy has run, and undone, on the same batch.

No rank waits for another one that fails meanwhile: its next message has the error, and all ranks
undo the step.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, TypeVar

from tf_libra.runtime import same_step
from tf_libra.runtime.family_options import describe_error, first_failure
from tf_libra.runtime.protocol import CandidateStep, TrialError
from tf_libra.runtime.training_step import TrainingFunction
from tf_libra.variable_sync.bound_variables import BoundVariable

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class RepeatedStep:
    """The step of data parallelism.

    Attributes:
        result: its result.
        seconds: how long it took on this rank.
        reason: why the other strategy cannot take its place, in a clause, the same on every rank;
            empty if it computes the same.
        scales: see `same_step.find_scales`; of all ranks.
    """

    result: Any
    seconds: float
    reason: str
    scales: Mapping[str, float] = field(default_factory=dict)


class ScaleEvidence:
    """Evidence that a strategy changes weights by other amounts, which differ by chance, too.

    Other statistics and draws may change a weight twice as much in one step. The gradient of a sum
    does in every step.

    Attributes:
        is_complete: whether no further step is to be compared.
    """

    MOST_STEPS: ClassVar[int] = 3
    """Steps after which a weight of another scale is no chance."""

    def __init__(self) -> None:
        """Begins without a step."""
        self._steps: list[Mapping[str, float]] = []
        self.is_complete = False

    def add(self, scales: Mapping[str, float]) -> str:
        """Adds a compared step; returns what is wrong, in a clause, empty if nothing is so far."""
        self._steps.append(scales)
        for name, ratio in scales.items():
            ratios = [step.get(name, 1.0) for step in self._steps]
            if all(other != 1.0 and (other > 1) is (ratio > 1) for other in ratios):
                break
        else:
            self.is_complete = True
            return ""
        self.is_complete = len(self._steps) == self.MOST_STEPS
        if not self.is_complete:
            return ""
        return (
            f"variable {name!r} would change {ratio:.2g} times as much, which no allowed difference"
            " explains"
        )


def repeat(
    first: TrainingFunction,
    candidate: CandidateStep,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    trained_only: bool,
) -> RepeatedStep:
    """Trains a step by data parallelism, after another strategy has run and undone it.

    Args:
        first: the step under data parallelism.
        candidate: the step under the other strategy.
        args: of the step.
        kwargs: of the step.
        trained_only: see `same_step.describe_difference`.
    """
    undone, reason, noise = None, "", same_step.RoundingNoise()
    scales: dict[str, float] = {}
    try:
        undone = run_undone(first, candidate, args, kwargs)
    except TrialError as error:  # on all ranks
        reason = describe_error(error)
    start = time.perf_counter()
    result = first.step(args, kwargs)
    seconds = time.perf_counter() - start

    def compare(repeated: same_step.UndoneStep | None = None) -> str:
        """Returns what differs on a rank, and finds scales, the same on every rank."""
        assert undone is not None
        mine: tuple[str, dict[str, float]]
        try:
            if repeated is not None:
                noise.add(undone, repeated)
            accepted = candidate.accepted
            mine = (
                same_step.describe_difference(undone, result, trained_only, noise, accepted),
                same_step.find_scales(undone, noise, accepted),
            )
        except Exception as error:  # of this rank alone, as for lack of memory
            mine = describe_error(error), {}
        everyone = first.exchange(mine)
        scales.clear()
        for _, theirs in everyone:
            scales.update(theirs)
        return next((reason for reason, _ in everyone if reason), "")

    if undone is None:
        return RepeatedStep(result, seconds, reason)
    first.synchronize_variables()  # ranks may hold parts of slots
    reason = compare()
    for number in range(same_step.MOST_PERTURBED):
        if reason in ("", same_step.NO_CHANGE) and not scales:
            break
        start_values = partial(same_step.perturb, undone, candidate.least_precise_dtype, number)
        try:
            found = compare(run_undone(first, candidate, args, kwargs, start_values))
            reason = found if reason or found != same_step.NO_CHANGE else ""
        except TrialError as error:  # on all ranks
            reason = describe_error(error)
            break
    return RepeatedStep(result, seconds, reason, scales)


def run_undone(
    first: TrainingFunction,
    candidate: CandidateStep,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    start: Callable[[], Iterable[tuple[BoundVariable, Any]]] | None = None,
) -> same_step.UndoneStep:
    """Runs a step of another strategy, and undoes it; see `repeat` for the arguments.

    Args:
        first: the step under data parallelism.
        candidate: the step under the other strategy.
        args: of the step.
        kwargs: of the step.
        start: see `same_step.run_undone`.

    Raises:
        TrialError: on every rank: the step has failed, and is undone.
    """
    number = candidate.step_number
    undone = same_step.run_undone(
        partial(candidate.step, args, kwargs),
        candidate.synchronize_variables,
        lambda call: _together(first, call),
        candidate.bound_variables.values(),
        start,
    )
    candidate.step_number = number  # the script does not count it
    return undone


def _together(first: TrainingFunction, call: Callable[[], _Result]) -> _Result:
    """Makes a call that reaches no other rank, and returns its result once all ranks have made it.

    Raises:
        TrialError: on every rank: the call has failed on a rank.
    """
    reason = ""
    try:
        result = call()
    except Exception as error:  # of this rank alone
        reason = describe_error(error) or type(error).__name__
    failure = first_failure(first.exchange(reason))
    if failure:
        raise TrialError(failure)
    return result
