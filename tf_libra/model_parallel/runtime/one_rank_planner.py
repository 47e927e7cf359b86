"""Planner of steps on one rank: training steps measure ranks in turn, unless one is given."""

import math
import textwrap
from collections.abc import Callable
from typing import Any

from tf_libra.autotune import Phase
from tf_libra.coordination.control_plane import Control
from tf_libra.internal import formatting
from tf_libra.model_parallel.execution.step_executor import StepExecutor
from tf_libra.model_parallel.execution.transport import Transport
from tf_libra.model_parallel.execution.whole_step import check_outputs
from tf_libra.model_parallel.partition.layout import Layout
from tf_libra.model_parallel.partition.sized_traces import SizedTraces
from tf_libra.model_parallel.planning.one_rank import OneRankStrategy, fastest_rank_plan
from tf_libra.model_parallel.planning.results import returns_own
from tf_libra.reporting.run_reporter import RunReporter
from tf_libra.specs.one_rank import OneRankPlan

# Steps of each rank, of which the first instantiates functions and is not measured.
_STEPS = 3
# Most ranks that are measured, so that measurements do not grow with the job.
_MOST_RANKS = 4


class OneRankPlanner:
    """See `Planner`."""

    num_microbatches = 1
    has_branches = False
    joins_rows = True

    def __init__(self, strategy: OneRankStrategy, user_plan: OneRankPlan | None = None) -> None:
        """Start without a plan.

        Args:
            strategy: strategy with its arguments.
            user_plan: plan to follow; None: the strategy chooses the rank.
        """
        self.plan: OneRankPlan | None = None
        self.requested = (
            repr(strategy) if user_plan is None else f"{strategy!r} under {user_plan!r}"
        )
        self._user_plan = user_plan
        self._rank = strategy.rank
        self.shares_own_results = returns_own(strategy)
        self._layout: Layout | None = None
        self._steps = 0
        self._seconds = math.inf  # least computation of this rank

    @property
    def predicted_seconds(self) -> float | None:
        """See `Planner`: unknown, since measured computation leaves out transfers."""
        return None

    @property
    def link_share(self) -> float:
        """See `Planner`."""
        return 0.0

    def replan(self) -> None:
        """See `Planner`. The rank does not depend on links."""

    def check_batch(self, examples_per_rank: int, num_ranks: int) -> None:
        """Raise `ValueError` if the job has no requested rank, or another number of ranks."""
        if self._user_plan is not None and self._user_plan.num_workers != num_ranks:
            raise ValueError(
                f"plan must be made for the job's {num_ranks} ranks, got one for"
                f" {self._user_plan.num_workers}"
            )
        if self._rank is not None and self._rank >= num_ranks:
            raise ValueError(
                f"rank must be one of the job, at most {num_ranks - 1}, got {self._rank}"
            )

    def check_traces(self, traces: SizedTraces) -> None:
        """Raise `ValueError` if a result cannot be sent to the other ranks."""
        if not self.shares_own_results:  # else they are checked for the rank's own examples
            graph = traces.microbatch_graph
            check_outputs(graph.recording.name, graph.outputs)

    def begin(
        self,
        traces: SizedTraces,
        call_arguments: Any,
        control: Control,
        transport: Transport,
        reporter: RunReporter,
    ) -> None:
        """Begin to measure, or adopt the requested rank."""
        self._traces, self._control, self._reporter = traces, control, reporter
        if self._user_plan is not None:
            self._adopt(self._user_plan)
        elif self._rank is not None:
            self._adopt(OneRankPlan(self._rank, control.world_size))
        else:
            reporter.on_activity(Phase.MEASURE)

    def next_layout(self) -> Layout:
        """See `Planner`. The last ranks are measured, and then rank 0, which is preferred."""
        if self._layout is not None:
            return self._layout
        world_size = self._control.world_size
        number, count = self._steps // _STEPS, min(world_size, _MOST_RANKS)
        if number < count:
            rank = 0 if number == count - 1 else world_size - 1 - number
            return self._layout_on(rank, world_size)
        self._reporter.on_idle()
        mine = self._seconds if math.isfinite(self._seconds) else None
        everyone = self._control.all_gather(mine)
        measured = [math.inf if seconds is None else seconds for seconds in everyone]
        return self._adopt(fastest_rank_plan(measured))

    def during(self, traces: SizedTraces, execution: StepExecutor, run: Callable[[], Any]) -> Any:
        """See `Planner`."""
        result = run()
        if traces is self._traces and self._layout is None:
            self._steps += 1
            if self._steps % _STEPS != 1:
                for span in execution.task_spans:
                    self._seconds = min(self._seconds, span.stop_seconds - span.start_seconds)
        return result

    def _layout_on(self, rank: int, num_ranks: int) -> Layout:
        return Layout.on_one_rank(rank, num_ranks)

    def _adopt(self, plan: OneRankPlan) -> Layout:
        self.plan = plan
        self._layout = self._layout_on(plan.rank, plan.num_workers)
        if plan.rank == self._control.rank or self._control.rank == 0:
            self._reporter.log.info("one rank: %s", _described(plan))
        return self._layout

    def explained(self, name: str, execution: StepExecutor) -> str:
        """See `Planner`."""
        assert self.plan is not None
        results = "the joint batch"
        if self.shares_own_results:
            results = "its own examples, of which all ranks have equally many"
        lines = [
            f"{name}: {_described(self.plan)}",
            f"results: every rank gets those of {results}",
        ]
        for span in execution.task_spans:
            computed = formatting.time(span.stop_seconds - span.start_seconds)
            waited = formatting.time(span.start_seconds)
            lines.append(
                f"last step: {waited} until the examples of all ranks were here, then {computed} of"
                " computation"
            )
        return "\n".join(part for line in lines for part in textwrap.wrap(line, formatting.COLUMNS))


def _described(plan: OneRankPlan) -> str:
    """Return the plan in one sentence."""
    text = (
        f"rank {plan.rank} trains the joint batch of {plan.num_workers} ranks, and the others wait"
    )
    if not plan.seconds:
        return text
    times = ", ".join(map(formatting.time, plan.seconds))
    return f"{text}; from rank 0 on, ranks compute a step in {times}"
