"""Results of training steps under measured layouts: compute times of layers, and flows."""

from typing import Any, NamedTuple

import numpy as np

from tf_libra.model_parallel.capture.batch_axes import BatchAxes
from tf_libra.model_parallel.partition.layout import Layout
from tf_libra.model_parallel.partition.stage_partition import StagePartition
from tf_libra.model_parallel.planning.burst.measured_scaling import (
    ActivationFlow,
    Edge,
    at_counts,
)


class MeasuredLayout(NamedTuple):
    """Measured layout of training steps: one layer per stage, or all layers in one stage."""

    num_ranks: int
    layout: Layout


class ComputeTimes(NamedTuple):
    """Compute times of layers.

    Attributes:
        seconds: seconds of each layer at each number of ranks, update included, shape [L, G].
        stage_startup: seconds that the calls of one more stage add.
    """

    seconds: Any
    stage_startup: float


def compute_times(
    trials: list[MeasuredLayout], everyone: list[list[list[float]]], counts: tuple[int, ...]
) -> ComputeTimes:
    """Return the compute times that the trials have measured, as means over participating ranks.

    A layer in its own stage includes the overhead of its call. Layer times are therefore scaled to
    the time of all layers in one call.
    """
    means = [
        np.mean([everyone[rank][number] for rank in range(trial.num_ranks)], axis=0)
        for number, trial in enumerate(trials)
    ]
    columns, calls = {}, []
    for trial, apart, whole in zip(trials[::2], means[::2], means[1::2], strict=True):
        columns[trial.num_ranks] = apart * (whole[0] / apart.sum())
        calls.append((apart.sum() - whole[0]) / (len(apart) - 1))
    return ComputeTimes(at_counts(columns, counts), max(float(np.median(calls)), 0.0))


def flows(cut: StagePartition, axes: BatchAxes) -> dict[Edge, ActivationFlow]:
    """Return the flow between each pair of layers; as much flows back as forward.

    Args:
        cut: partition of the step for the whole batch, with one layer per stage.
        axes: batch axes of the same trace.
    """
    found: dict[Edge, ActivationFlow] = {}
    for message in cut.messages:
        edge = (message.source, message.target)
        if message.source > message.target:
            continue  # gradients of several layers may be added before they reach a layer
        tensor = cut.tensor(message.tensor)
        ways = 1 + tensor.dtype.is_floating
        size = float(tensor.shape.num_elements() * tensor.dtype.size * ways)
        is_whole = axes.batch_axis(message.tensor) is None
        flow = ActivationFlow(other_bytes=size) if is_whole else ActivationFlow(sample_bytes=size)
        found[edge] = found.get(edge, ActivationFlow()) + flow + ActivationFlow(num_messages=ways)
    return dict(sorted(found.items()))
