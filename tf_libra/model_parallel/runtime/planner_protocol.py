"""Protocol of planners, which choose the layout of each step over the ranks."""

from collections.abc import Callable
from typing import Any, Protocol

from tf_libra.coordination.control_plane import Control
from tf_libra.coordination.job import Job
from tf_libra.model_parallel.execution.step_executor import StepExecutor
from tf_libra.model_parallel.execution.transport import Transport
from tf_libra.model_parallel.partition.layout import Layout
from tf_libra.model_parallel.partition.sized_traces import SizedTraces
from tf_libra.reporting.run_reporter import RunReporter
from tf_libra.specs.burst import BurstPlan
from tf_libra.specs.one_rank import OneRankPlan
from tf_libra.specs.pipeline import PipelinePlan

StagedPlan = PipelinePlan | BurstPlan | OneRankPlan


class Planner(Protocol):
    """Planner of one training function, on every rank of a job."""

    @property
    def plan(self) -> StagedPlan | None:
        """Active plan; None before it is made."""
        ...

    @property
    def requested(self) -> str:
        """Requested options that must be equal on all ranks."""
        ...

    @property
    def num_microbatches(self) -> int:
        """Number of microbatches of the global batch."""
        ...

    @property
    def shares_own_results(self) -> bool:
        """True if ranks get results of their own examples, and write metrics by themselves."""
        ...

    @property
    def predicted_seconds(self) -> float | None:
        """Predicted step under the plan; None before there is one, or if nothing predicts it."""
        ...

    @property
    def link_share(self) -> float:
        """Share of the predicted step in which ranks wait for links; 0 if unknown."""
        ...

    @property
    def has_branches(self) -> bool:
        """True if plans may contain branches; an op that joins branches is then a layer."""
        ...

    @property
    def joins_rows(self) -> bool:
        """True if one rank applies sparse gradients of the joint batch; stages need dense ones."""
        ...

    def check_batch(self, examples_per_rank: int, num_ranks: int) -> None:
        """Raise `ValueError` if batches of this size cannot be divided."""
        ...

    def check_traces(self, traces: SizedTraces) -> None:
        """Raise `ValueError` if the step cannot be planned; reaches no other rank."""
        ...

    def begin(
        self,
        traces: SizedTraces,
        call_arguments: Any,
        control: Control,
        transport: Transport,
        reporter: RunReporter,
    ) -> None:
        """Start planning once the first arguments are known; all ranks call this.

        Raises:
            ValueError: the step cannot be planned as requested.
        """
        ...

    def next_layout(self) -> Layout:
        """Return the layout of the next step; all ranks call this before each step."""
        ...

    def replan(self) -> None:
        """Plan the next step again, with links as measured then; all ranks call this."""
        ...

    def during(self, traces: SizedTraces, execution: StepExecutor, run: Callable[[], Any]) -> Any:
        """Run a step whose arguments have these traces; the planner may measure the step."""
        ...

    def explained(self, name: str, execution: StepExecutor) -> str:
        """Return a description of the plan as text of at most 100 columns."""
        ...


def reject_tensorflow_strategies(name: str, planner: Planner, job: Job | None) -> None:
    """Raise `ValueError` if a strategy of TensorFlow has every worker compute the whole step.

    Args:
        name: name of the training function.
        planner: its planner.
        job: job of the ranks.
    """
    if job is not None and job.by_strategy:
        raise ValueError(
            f"{name} is to run in stages ({planner.requested}), and {job.name} has every worker"
            " compute the whole step: ask for a strategy of data parallelism, such as 'libra', or"
            " start the job under Horovod"
        )
