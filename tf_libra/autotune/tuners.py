"""Entry point of tuning on rank 0: runs the tuner that a strategy names."""

import time
from collections.abc import Callable, Sequence

from tf_libra import strategies
from tf_libra.autotune import model_tuner as model_tuner
from tf_libra.autotune import portfolio_tuner as portfolio_tuner
from tf_libra.autotune import search_tuner as search_tuner
from tf_libra.autotune.budget import Budget, BudgetTracker
from tf_libra.autotune.phase import Phase
from tf_libra.autotune.problem import TuningProblem
from tf_libra.autotune.sampling_plans import TensorSpec
from tf_libra.autotune.tuner_registry import Tuner, way_of
from tf_libra.autotune.warm_start import WarmStart
from tf_libra.cost_model.fit_quality import MAX_MODEL_ERROR
from tf_libra.specs.plan import Plan


def asks_for_a_start(strategy: strategies.Strategy) -> bool:
    """Returns whether the findings of an earlier, similar job take part in tuning."""
    return way_of(strategy).asks_for_a_start(strategy)


def tune(
    tensors: Sequence[TensorSpec],
    strategy: strategies.Strategy,
    num_workers: int,
    budget: Budget,
    max_model_error: float = MAX_MODEL_ERROR,
    clock: Callable[[], float] = time.monotonic,
    begins: Callable[[Phase], None] = lambda phase: None,
    hops: int | None = None,
    workers_per_host: int | None = None,
    runs_streams: bool = False,
    in_force: Plan | None = None,
    start: Callable[[float | None], WarmStart | None] = lambda bytes_per_second: None,
    is_over: Callable[[], bool] = lambda: False,
) -> Tuner:
    """Yields experiments until the budget is spent or all is known; returns a plan.

    The generator is sent what was observed of each step.

    Args:
        tensors: in backward order as far as tracing knows it.
        strategy: what to plan with; its `tuned_by` says how.
        num_workers: world size.
        budget: what may go by.
        max_model_error: beyond this median relative error on held-out steps the model is not
            trusted to choose threads.
        clock: seconds.
        begins: called when FIT and PLAN begin, which are no steps.
        hops: that an all-reduce makes one after the other; None: those of a ring.
        workers_per_host: by which it makes twice as many on two levels; see `ContentionModel`.
        runs_streams: whether the engine runs all-reduces of several streams concurrently.
        in_force: a plan that is left only for one that is clearly faster in a race.
        start: what a job that is alike has found, by the bytes per second of the network as
            measured; None where nothing is known.
        is_over: whether no experiment can be made any more, whatever the budget has left.
    """
    task = TuningProblem(
        tensors,
        strategy,
        num_workers,
        BudgetTracker(budget, clock, is_over),  # with the first step
        max_model_error,
        begins,
        hops,
        workers_per_host,
        runs_streams,
        in_force,
        start,
    )
    return (yield from way_of(strategy).tune(task))
