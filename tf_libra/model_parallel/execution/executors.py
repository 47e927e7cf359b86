"""Choice of what runs a rank's part of a step."""

import contextlib
from collections.abc import Callable, Mapping

from tf_libra.model_parallel.execution.stage_executor import StageExecutor
from tf_libra.model_parallel.execution.step_executor import StepExecutor
from tf_libra.model_parallel.execution.transport import Transport
from tf_libra.model_parallel.execution.whole_step import WholeStepExecutor
from tf_libra.model_parallel.partition.layout import Layout
from tf_libra.model_parallel.partition.own_results import OwnResults
from tf_libra.model_parallel.partition.sized_traces import SizedPartition


def make_executor(
    layout: Layout,
    partitions: Mapping[int, SizedPartition],
    examples_per_rank: int,
    transport: Transport,
    computing: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    own_results: OwnResults | None = None,
    is_guarded: bool = False,
) -> StepExecutor:
    """Returns the executor of a layout; see `StageExecutor` for other arguments and errors.

    Args:
        layout: the layout.
        partitions: the partitions by number of examples.
        examples_per_rank: number of examples that each rank passes.
        transport: transport to the other ranks.
        computing: returns a context for the computation of a step.
        own_results: see `StageExecutor`.
        is_guarded: see `WholeStepExecutor`.
    """
    if layout.is_whole:
        joint = partitions[max(partitions)]
        return WholeStepExecutor(
            layout, joint, examples_per_rank, transport, computing, own_results, is_guarded
        )
    return StageExecutor(layout, partitions, examples_per_rank, transport, computing, own_results)
