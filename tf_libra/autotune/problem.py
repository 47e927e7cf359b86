"""The input of a tuner: the tensors, the strategy, the workers, the engine and the budget."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tf_libra import strategies
from tf_libra.autotune.budget import BudgetTracker
from tf_libra.autotune.phase import Phase
from tf_libra.autotune.sampling_plans import TensorSpec
from tf_libra.autotune.warm_start import WarmStart
from tf_libra.specs.plan import Plan


@dataclass(frozen=True)
class TuningProblem:
    """One tuning, from its first step on; see `tuners.tune`.

    Attributes:
        tensors: in backward order as far as tracing knows it.
        strategy: what to plan with.
        num_workers: world size.
        end: queried before every step.
        max_model_error: beyond this median relative error on held-out steps the model is not
            trusted to choose threads.
        begins: called when FIT and PLAN begin, which are no steps.
        hops: that an all-reduce makes one after the other; None: those of a ring.
        workers_per_host: by which it makes twice as many on two levels; see `ContentionModel`.
        runs_streams: whether the engine runs all-reduces of several streams concurrently.
        in_force: a plan that is left only for one that is clearly faster in a race.
        start: what an earlier job that is alike has found, by the bytes per second of the network
            as measured; None where nothing is known.
    """

    tensors: Sequence[TensorSpec]
    strategy: strategies.Strategy
    num_workers: int
    end: BudgetTracker
    max_model_error: float
    begins: Callable[[Phase], None]
    hops: int | None
    workers_per_host: int | None
    runs_streams: bool
    in_force: Plan | None
    start: Callable[[float | None], WarmStart | None]
