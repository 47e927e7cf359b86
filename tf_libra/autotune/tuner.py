"""Tuners: the problem they solve, their registry, and `tune`, which runs the tuner of a strategy.

A tuner is a generator. It yields the `Trial` of the next training step, is sent the `TrialResult`
of that step (None if the step was not observed), and returns a `TuningResult`. It drives nothing
itself, so that a simulated machine can take the place of training.
"""

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from tf_libra.autotune.budget import Budget, BudgetTracker
from tf_libra.autotune.sampling_plans import TensorSpec
from tf_libra.autotune.trial import Phase, Trial, TrialResult
from tf_libra.autotune.tuning_result import TuningResult
from tf_libra.autotune.warm_start import WarmStart
from tf_libra.cost_model.fit_quality import MAX_MODEL_ERROR
from tf_libra.internal.registry import ClassRegistry, missing_members
from tf_libra.internal.values import NonNegative, Value
from tf_libra.planning.strategy import Strategy
from tf_libra.specs.plan import Plan, WireDtype

Tuner = Generator[Trial, TrialResult | None, TuningResult]


@dataclass(frozen=True)
class WireFormat(Value):
    """Lossy format that the user allows.

    Attributes:
      dtype: dtype in which float32 tensors may travel.
      rounding_per_byte: seconds of a core to round a byte of float32, and back.

    Raises:
      ValueError: a field is out of its range.
    """

    dtype: WireDtype
    rounding_per_byte: NonNegative = 0.0


@dataclass(frozen=True)
class TuningProblem:
    """Input of a tuner.

    Attributes:
        tensors: gradients, in backward order as far as tracing knows it.
        strategy: strategy to plan with.
        num_workers: world size.
        budget: tracker that grants every step.
        max_model_error: median relative error on held-out steps above which the model may not
            choose threads.
        on_phase: called when FIT and PLAN begin, which take no steps.
        hops: sequential hops of an all-reduce; None for those of a ring.
        workers_per_host: workers per host of a two-level all-reduce; see `ContentionModel`.
        cores: cores of a worker.
        on_one_host: True if all workers are on one host.
        runs_streams: True if the engine runs all-reduces of several streams concurrently.
        leaves_records: False if only a trace shows when all-reduces ran.
        wire: format to which plans may round tensors on their way; None: to none.
        tries_gathers: whether plans may have gathers, and take part in races.
        overlaps_calls: whether gathers go on after a step of a search or race under any plan, not
            only under a plan with gathers.
        whole_updates: names of tensors whose updates every rank makes, also under a plan with
            gathers.
        active_plan: plan that only a clearly faster plan may replace; None if there is none.
        find_warm_start: returns the warm start from a similar job, given the measured network rate
            in bytes per second; None if no job is similar.
        has_alternatives: whether strategies of other kinds, such as one worker, may train instead.
    """

    tensors: Sequence[TensorSpec]
    strategy: Strategy
    num_workers: int
    budget: BudgetTracker
    max_model_error: float
    on_phase: Callable[[Phase], None]
    hops: int | None
    workers_per_host: int | None
    cores: int
    on_one_host: bool
    runs_streams: bool
    leaves_records: bool
    wire: WireFormat | None
    tries_gathers: bool
    overlaps_calls: bool
    whole_updates: Sequence[str]
    active_plan: Plan | None
    find_warm_start: Callable[[float | None], WarmStart | None]
    has_alternatives: bool

    @property
    def wire_dtypes(self) -> tuple[str | None, ...]:
        """Returns the wire dtypes to plan with: None, and the lossy one if the user allows it."""
        return (None,) if self.wire is None else (None, self.wire.dtype)

    def overlaps(self, plan: Plan) -> bool:
        """Returns whether gathers go on after a step of a search or race under a plan."""
        return self.overlaps_calls or bool(plan.gathers)


class TunerKind(Protocol):
    """Frozen dataclass that makes tuners for the strategies that name it.

    Attributes:
        name: value of `tuned_by` in strategies.
        accepts: protocol of the strategies that it can tune.
    """

    name: ClassVar[str]
    accepts: ClassVar[type[Any]]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def uses_warm_start(self, strategy: Strategy) -> bool:
        """Returns whether tuning uses the result of a similar earlier job."""
        ...

    def tune(self, problem: TuningProblem) -> Tuner:
        """Returns a tuner, which ends when all trials are made or the budget is spent."""
        ...


REGISTRY: ClassRegistry[TunerKind] = ClassRegistry("tf_libra.autotune.tuner", "tuned_by", TunerKind)
register = REGISTRY.register


def tuner_for(strategy: Strategy) -> TunerKind:
    """Returns the kind of tuner that a strategy names.

    Raises:
        ValueError: unknown name, or the strategy lacks members that this kind needs.
    """
    kind = REGISTRY.resolve(strategy.tuned_by)
    missing = missing_members(type(strategy), kind.accepts)
    if missing:
        raise ValueError(
            f"strategy {strategy.name!r} must have {', '.join(missing)} to be tuned by"
            f" {kind.name!r}; see {kind.accepts.__module__}.{kind.accepts.__name__}"
        )
    return kind


def uses_warm_start(strategy: Strategy) -> bool:
    """Returns whether tuning of a strategy uses the result of a similar earlier job."""
    return tuner_for(strategy).uses_warm_start(strategy)


def tune(
    tensors: Sequence[TensorSpec],
    strategy: Strategy,
    num_workers: int,
    budget: Budget,
    max_model_error: float = MAX_MODEL_ERROR,
    *,
    leaves_records: bool,
    clock: Callable[[], float] = time.monotonic,
    on_phase: Callable[[Phase], None] = lambda phase: None,
    hops: int | None = None,
    workers_per_host: int | None = None,
    cores: int = 1,
    on_one_host: bool = False,
    runs_streams: bool = False,
    wire: WireFormat | None = None,
    tries_gathers: bool = False,
    overlaps_calls: bool = False,
    whole_updates: Sequence[str] = (),
    active_plan: Plan | None = None,
    find_warm_start: Callable[[float | None], WarmStart | None] = lambda bytes_per_second: None,
    has_alternatives: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
) -> Tuner:
    """Runs the tuner that a strategy names; a `Tuner` generator for rank 0.

    Args:
        tensors: see `TuningProblem`.
        strategy: see `TuningProblem`.
        num_workers: see `TuningProblem`.
        budget: steps and seconds that tuning may take, from the first step on.
        max_model_error: see `TuningProblem`.
        leaves_records: see `TuningProblem`.
        clock: returns seconds.
        on_phase: see `TuningProblem`.
        hops: see `TuningProblem`.
        workers_per_host: see `TuningProblem`.
        cores: see `TuningProblem`.
        on_one_host: see `TuningProblem`.
        runs_streams: see `TuningProblem`.
        wire: see `TuningProblem`.
        tries_gathers: see `TuningProblem`.
        overlaps_calls: see `TuningProblem`.
        whole_updates: see `TuningProblem`.
        active_plan: see `TuningProblem`.
        find_warm_start: see `TuningProblem`.
        has_alternatives: see `TuningProblem`.
        should_stop: returns True to end tuning before the budget is spent.
    """
    problem = TuningProblem(
        tensors,
        strategy,
        num_workers,
        BudgetTracker(budget, clock, should_stop),  # starts the clock with the first step
        max_model_error,
        on_phase,
        hops,
        workers_per_host,
        cores,
        on_one_host,
        runs_streams,
        leaves_records,
        wire,
        tries_gathers,
        overlaps_calls,
        whole_updates,
        active_plan,
        find_warm_start,
        has_alternatives,
    )
    return (yield from tuner_for(strategy).tune(problem))
