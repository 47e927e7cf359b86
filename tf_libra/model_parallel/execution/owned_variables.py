"""Variables of a step that belong to a stage, whose ranks keep them up to date."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

from tf_libra.model_parallel.capture.step_graph import StepGraph
from tf_libra.model_parallel.execution.metrics import is_replica_sum
from tf_libra.model_parallel.partition.sized_traces import SizedTraces
from tf_libra.variable_sync.bound_variables import BoundVariable


@dataclass(frozen=True)
class OwnedVariable:
    """Variable that the ranks of one stage keep up to date.

    Attributes:
        key: key of the variable.
        name: name of the variable.
        ranks: ranks of its stage.
        is_used: whether this rank computes with it.
        is_sum: whether each of these ranks adds to a value of its own, as to the total of a metric,
            so that the variable is the sum over them.
        is_written: whether a step changes it.
        may_differ: whether these ranks may have different values, of their own examples.
        dtype: dtype of its value.
        shape: static shape of its value.
    """

    key: int
    name: str
    ranks: tuple[int, ...]
    is_used: bool
    is_sum: bool
    is_written: bool
    may_differ: bool
    dtype: tf.DType
    shape: tf.TensorShape

    @property
    def is_served(self) -> bool:
        """Returns whether other ranks can read it."""
        dtype = self.dtype
        is_number = dtype.is_floating or dtype.is_integer or dtype.is_bool
        return bool(is_number and self.shape.is_fully_defined())


def find_owned_variables(
    graph: StepGraph,
    captured: Mapping[str, BoundVariable],
    stages: Mapping[str, int],
    ranks: Sequence[tuple[int, ...]],
    used: Collection[str],
) -> list[OwnedVariable]:
    """Returns the variables of a trace that belong to a stage, in the order of its inputs.

    Args:
        graph: the trace.
        captured: by placeholder, the variables that it captures.
        stages: by placeholder of a variable, its stage.
        ranks: by stage, the ranks of its replicas.
        used: placeholders of the variables that this rank computes with.

    Raises:
        ValueError: the step changes a variable that cannot be sent to other ranks.
    """
    accumulated, updated = (
        {handle for index in effects for handle in graph.handles[index]}
        for effects in (graph.microbatch_effects, graph.update_effects)
    )
    owned = []
    for placeholder, variable in captured.items():
        if placeholder in stages:
            owners = ranks[stages[placeholder]]
            is_written = placeholder in accumulated | updated
            can_be_sent = variable.is_number or variable.dtype.is_complex
            if is_written and not (can_be_sent and variable.shape.is_fully_defined()):
                raise ValueError(
                    f"{graph.recording.name} changes {variable.name!r}, which cannot be sent to"
                    f" other ranks: its dtype is {variable.dtype.name} and its shape is"
                    f" {variable.shape}; change it outside of the step"
                )
            owned.append(
                OwnedVariable(
                    variable.key,
                    variable.name,
                    owners,
                    is_used=placeholder in used,
                    is_sum=len(owners) > 1 and is_replica_sum(graph, placeholder),
                    is_written=is_written,
                    may_differ=len(owners) > 1 and placeholder in accumulated,
                    dtype=variable.dtype,
                    shape=variable.shape,
                )
            )
    return owned


def check_same_stages(
    traces: SizedTraces, stages: Mapping[str, int], trained: Mapping[int, int | None]
) -> None:
    """Raises `ValueError` if a variable changes its stage, which would have stale values.

    Args:
        traces: the step for other arguments than the first.
        stages: by placeholder of a variable, its stage for these arguments.
        trained: by key, the stage for the first arguments; None: it belongs to every rank.
    """
    recording = traces.microbatch_graph.recording
    for placeholder, stage in stages.items():
        variable = traces.captured_variables.get(placeholder)
        before = None if variable is None else trained.get(variable.key)
        if variable is None or before in (None, stage):
            continue
        if recording.is_evaluation:
            how = "where it takes no gradient, and trains it"
            instead = "evaluate in a function of its own"
        else:
            how = "for these arguments, and trained it for its first ones"
            instead = "decorate a function of its own for these"
        raise ValueError(
            f"{recording.name} computes with {variable.name!r} in stage {stage} {how} in stage"
            f" {before}: {instead}"
        )
