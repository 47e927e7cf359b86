"""Interface of what runs a rank's part of a step, in stages or as a whole."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tf_libra.model_parallel.partition.layout import Layout


@dataclass(frozen=True)
class TaskSpan:
    """Time in which one rank ran a computation, in seconds since its step began.

    Attributes:
        kind: "forward" or "backward"; "gradients" for those that waited for all microbatches;
            "step" for the whole step.
        microbatch: index of the microbatch; None for gradients of all microbatches.
        start_seconds: time at which all inputs were available.
        stop_seconds: end of the computation.
        stage: index of the stage.
    """

    kind: str
    microbatch: int | None
    start_seconds: float
    stop_seconds: float
    stage: int = 0


class StepExecutor(Protocol):
    """Execution of a step under a layout, on one rank.

    Attributes:
        layout: the replicas of each stage, and the order of tasks.
        stages: stages of this rank.
        task_spans: computations of the last step.
        reduction_span: start and stop, in seconds since the last step began, of the all-reduces
            after the backward computation; None if there were none.
        update_span: start and stop of the update, in the same way.
    """

    layout: Layout
    stages: tuple[int, ...]
    task_spans: tuple[TaskSpan, ...]
    reduction_span: tuple[float, float] | None
    update_span: tuple[float, float]

    @property
    def averaged_metrics(self) -> dict[str, tuple[str, ...]]:
        """Results that are averages of metrics over replicas, with the metrics' variables."""
        ...

    @property
    def captures(self) -> frozenset[str]:
        """Placeholders of the captured tensors, such as variables, that this rank uses."""
        ...

    @property
    def variables(self) -> dict[str, int]:
        """Stage of each variable, by placeholder, without variables that every rank updates."""
        ...

    def step(self, arguments: Sequence[Any]) -> list[Any]:
        """Runs a step.

        Args:
            arguments: the tensors that this rank passes, in the order of the trace's inputs.

        Returns:
            The step's results for the joint batch or for this rank's examples, as a flat list.
        """
        ...
