"""Interface of the planners that choose the layout of each step over the ranks."""

from collections.abc import Callable
from typing import Any, Protocol

from tf_libra.coordination.control_plane import Control
from tf_libra.model_parallel.execution.stage_executor import StageExecutor
from tf_libra.model_parallel.execution.transport import Transport
from tf_libra.model_parallel.partition.layout import Layout
from tf_libra.model_parallel.partition.sized_traces import SizedTraces
from tf_libra.reporting.run_reporter import RunReporter
from tf_libra.specs.burst import BurstPlan
from tf_libra.specs.pipeline import PipelinePlan


class Planner(Protocol):
    """Plans one training function, on every rank of one job."""

    @property
    def plan(self) -> PipelinePlan | BurstPlan | None:
        """The plan; None before it is made."""
        ...

    @property
    def asked(self) -> str:
        """The requested options that have to be the same on all ranks."""
        ...

    @property
    def num_microbatches(self) -> int:
        """Into how many the joint batch is divided."""
        ...

    @property
    def has_branches(self) -> bool:
        """True if it plans branches, so that an op that joins branches is a layer."""
        ...

    def check_batch(self, examples_per_rank: int, num_ranks: int) -> None:
        """Raises `ValueError` where batches of this size cannot be divided."""
        ...

    def begin(
        self,
        traces: SizedTraces,
        given: Any,
        control: Control,
        transport: Transport,
        reporter: RunReporter,
    ) -> None:
        """The first arguments are known; all ranks call this.

        Raises:
            ValueError: the step cannot be planned as requested.
        """
        ...

    def next_layout(self) -> Layout:
        """Returns the layout of the next step; all ranks call this before each step."""
        ...

    def during(self, traces: SizedTraces, execution: StageExecutor, run: Callable[[], Any]) -> Any:
        """Runs a step, with arguments of that kind, and may measure it."""
        ...

    def explained(self, name: str, execution: StageExecutor) -> str:
        """Returns a description of the plan as text of at most 100 columns."""
        ...
