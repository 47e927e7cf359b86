"""Choice of what runs a rank's part of a step."""

from collections.abc import Mapping

from tf_libra.model_parallel.execution.stage_executor import StageExecutor
from tf_libra.model_parallel.execution.step_executor import StepExecutor
from tf_libra.model_parallel.execution.transport import Transport
from tf_libra.model_parallel.execution.whole_step import WholeStepExecutor
from tf_libra.model_parallel.partition.layout import Layout
from tf_libra.model_parallel.partition.sized_traces import SizedPartition


def make_executor(
    layout: Layout,
    partitions: Mapping[int, SizedPartition],
    examples_per_rank: int,
    transport: Transport,
) -> StepExecutor:
    """Returns the executor of a layout; see `StageExecutor` for arguments and errors."""
    if layout.is_whole:
        [sized] = partitions.values()
        return WholeStepExecutor(layout, sized, examples_per_rank, transport)
    return StageExecutor(layout, partitions, examples_per_rank, transport)
