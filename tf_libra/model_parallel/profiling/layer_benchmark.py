"""Benchmark of a step's layers, which provides the planners' layer costs."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tf_libra.coordination.control_plane import Control
from tf_libra.model_parallel.capture.step_graph import TracedLayer
from tf_libra.model_parallel.partition.sized_traces import SizedTraces
from tf_libra.model_parallel.partition.stage_partition import StagePartition
from tf_libra.model_parallel.partition.update_phase import UpdatePhase
from tf_libra.model_parallel.planning.link_rates import LinkRates
from tf_libra.model_parallel.profiling.phase_timing import (
    FEW_REPEATS,
    MeasuredBatches,
    Repeats,
    time_phases,
    time_update,
)
from tf_libra.specs.layer_graph import LayerGraph


def measured_layers(
    traces: SizedTraces,
    call_arguments: Any,
    num_microbatches: int,
    repeats: int | None = None,
    defers: bool = False,
) -> LayerGraph:
    """Return the measured costs of a microbatch and of an update, without side effects.

    Each layer runs in its own call, which adds the call's overhead. Layer times are therefore
    scaled to the time of all layers in one call. Backward computation includes adding gradients to
    those of earlier microbatches. Some time, such as that addition, does not shrink with the number
    of examples (SPP, footnote 2). A run of one rank's share of a microbatch determines this time.
    The fixed time and the update time are divided among layers by parameter bytes.

    Args:
        traces: traces of the step.
        call_arguments: arguments, as `step_arguments.convert_arguments` returns them.
        num_microbatches: M.
        repeats: fixed number of repetitions; None: some, within seconds.
        defers: measure gradients apart that microbatches may defer, even for one microbatch.

    Raises:
        ValueError: the step has no cut between some of its layers.
    """
    layers = traces.microbatch_graph.layers
    count = len(layers)
    batches = MeasuredBatches(num_microbatches, defers or num_microbatches > 1)
    arguments = traces.named_arguments(call_arguments, traces.microbatch_size)
    few, many = FEW_REPEATS, Repeats()
    if repeats is not None:
        few = many = Repeats(repeats, repeats)
    each = time_phases(
        traces, traces.layer_partition, traces.microbatch_size, arguments, batches, few
    )
    apart = np.array(each.seconds)
    whole = time_phases(
        traces, traces.partition([0]), traces.microbatch_size, arguments, batches, many
    )
    forward = apart[:count] * whole.seconds[0] / apart[:count].sum()
    backward = apart[: count - 1 : -1] * whole.seconds[1] / apart[count:].sum()
    deferred = _scaled(np.array(each.deferred), whole.deferred[0])
    by_bytes = shares_of_bytes(layers)
    shares: tuple[float, ...] = ()
    # A share's tensors are smaller, so that more gradients could be deferred.
    same = batches._replace(reductions=whole.reductions)
    share_seconds = _share_seconds(traces, call_arguments, same, many)
    if share_seconds is not None:
        assert traces.shard_size is not None
        share = traces.shard_size / traces.microbatch_size
        fixed = (np.array(share_seconds) - share * np.array(whole.seconds)) / (1 - share)
        forward, backward = (
            np.stack([share * all_ + (1 - share) * np.clip(part * by_bytes, 0, all_), all_], axis=1)
            for all_, part in zip((forward, backward), fixed, strict=True)
        )
        shares = (share, 1.0)
    return LayerGraph.chain(
        forward,
        backward,
        [layer.parameter_bytes for layer in layers],
        crossing_bytes(traces.layer_partition),
        [layer.name for layer in layers],
        input_shares=shares,
        update_seconds=time_update(traces, arguments, whole.sums, many) * by_bytes,
        deferred_seconds=deferred,
    )


def measured_stages(
    traces: SizedTraces,
    call_arguments: Any,
    num_microbatches: int,
    layers: LayerGraph,
    starts: Sequence[int],
    links: LinkRates,
) -> LayerGraph:
    """Return the layers with times scaled to each stage's time in one call.

    A layer that runs alone keeps its data in caches, from which the other layers of a stage evict
    it. Sending and receiving tensors occupies a rank, so that time counts as computation.

    Args:
        traces: traces of the step.
        call_arguments: as for `measured_layers`.
        num_microbatches: M.
        layers: result of `measured_layers`.
        starts: first layer of each stage.
        links: measured links.

    Raises:
        ValueError: the step has no cut at these layers.
    """
    arguments = traces.named_arguments(call_arguments, traces.microbatch_size)
    cut = traces.partition(starts)
    batches = MeasuredBatches(num_microbatches, num_microbatches > 1)
    measured = time_phases(traces, cut, traces.microbatch_size, arguments, batches, Repeats())
    seconds = measured.seconds
    for message in cut.messages:
        seconds[message.send_phase] += links.sending_seconds
        seconds[message.receive_phase] += links.receiving_seconds
    count = len(starts)
    forward, backward = layers.seconds_by_share()
    deferred = layers.deferred_seconds.copy()
    for index, (start, stop) in enumerate(itertools.pairwise([*starts, len(layers.layers)])):
        for rows, taken in ((forward, seconds[index]), (backward, seconds[2 * count - 1 - index])):
            known = rows[start:stop, -1].sum()
            rows[start:stop] *= taken / known if known > 0 else 1.0
        deferred[start:stop] = _scaled(deferred[start:stop], measured.deferred[index])
    return layers.with_seconds(
        forward, backward, layers.update_seconds, layers.input_shares, deferred
    )


def _scaled(seconds: NDArray[np.float64], total: float) -> NDArray[np.float64]:
    """Return seconds in proportion, with another sum."""
    return seconds * (total / seconds.sum()) if seconds.sum() > 0 else seconds


def _share_seconds(
    traces: SizedTraces, call_arguments: Any, batches: MeasuredBatches, repeats: Repeats
) -> list[float] | None:
    """Return forward and backward seconds of one rank's share of a microbatch; None without one."""
    size = traces.shard_size
    if size is None:
        return None
    try:
        traces.axes(size)  # raises if the computation differs at this size
        cut = traces.partition([0], size)
        arguments = traces.named_arguments(call_arguments, size)
        return time_phases(traces, cut, size, arguments, batches, repeats).seconds
    except Exception:  # the script may reject so few examples; planning works without their time
        return None


def shares_of_bytes(layers: Sequence[TracedLayer]) -> NDArray[np.float64]:
    """Return each layer's share of all parameter bytes, shape [L]; zeros without parameters."""
    sizes = np.array([layer.parameter_bytes for layer in layers], float)
    return sizes / max(sizes.sum(), 1.0)


def crossing_bytes(cut: StagePartition) -> list[float]:
    """Return the bytes that cross each cut per microbatch, in the direction with more bytes."""
    forward, backward = np.zeros(cut.num_stages - 1), np.zeros(cut.num_stages - 1)
    for message in cut.messages:
        tensor = cut.tensor(message.tensor)
        size = tensor.shape.num_elements() * tensor.dtype.size
        if message.source < message.target:
            forward[message.source : message.target] += size
        else:
            backward[message.target : message.source] += size
    return [float(size) for size in np.maximum(forward, backward)]


def with_exchanges(layers: LayerGraph, traces: SizedTraces) -> LayerGraph:
    """Return layers with what ranks exchange before the first and after the last of them.

    Args:
        layers: layers of the step.
        traces: traces of the step.
    """
    graph = traces.microbatch_graph
    inputs = [graph.ops[graph.op_index[name]].outputs[0] for name in graph.arguments]
    results = graph.recording.concrete.outputs
    try:
        num_rounds = UpdatePhase(traces.layer_partition).num_rounds
    except ValueError:  # one rank alone can update
        num_rounds = 1
    return replace(
        layers,
        input_bytes=sum(_num_bytes(tensor) for tensor in inputs if tensor.shape.rank != 0),
        output_bytes=sum(map(_num_bytes, results)),
        update_broadcasts=num_rounds - 1,
    )


def _num_bytes(tensor: Any) -> float:
    """Return the bytes of a tensor; 0 if its shape is unknown, or it is text."""
    return float((tensor.shape.num_elements() or 0) * tensor.dtype.size)


def averaged(layers: LayerGraph, control: Control) -> LayerGraph:
    """Return the mean of all ranks' measurements; all ranks call this."""
    everyone = control.all_gather(layers.to_document())
    return LayerGraph.mean([LayerGraph.from_document(document) for document in everyone])
