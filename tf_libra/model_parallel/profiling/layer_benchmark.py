"""Benchmark of a step's layers, which provides the planners' layer costs."""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tf_libra.coordination.control_plane import Control
from tf_libra.model_parallel.capture import conditional_updates
from tf_libra.model_parallel.capture.step_graph import StepGraph, TracedLayer
from tf_libra.model_parallel.execution.gradient_reduction import (
    DeferredReduction,
    GradientReduction,
    tensor_key,
)
from tf_libra.model_parallel.execution.stage_tasks import NO_OPS, SubgraphFunction, sum_key
from tf_libra.model_parallel.partition.deferred_gradients import (
    DeferredGradient,
    find_deferred_gradients,
    without_deferred,
)
from tf_libra.model_parallel.partition.sized_traces import SizedTraces
from tf_libra.model_parallel.partition.stage_partition import StagePartition
from tf_libra.model_parallel.partition.subgraph import SubgraphExtractor
from tf_libra.model_parallel.partition.update_phase import UpdatePhase
from tf_libra.model_parallel.planning.link_rates import LinkRates
from tf_libra.specs.layer_graph import LayerGraph

# Fewest and most repetitions, and seconds that permit more than the fewest: machine speed varies.
_FEWEST, _MOST, _LONG_ENOUGH = 3, 15, 1.0


class _Repeats(NamedTuple):
    """Fewest and most repetitions; up to `_LONG_ENOUGH` seconds permit more than the fewest."""

    fewest: int = _FEWEST
    most: int = _MOST


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
    batches = _Batches(num_microbatches, defers or num_microbatches > 1)
    arguments = traces.named_arguments(call_arguments, traces.microbatch_size)
    few, many = _Repeats(most=_FEWEST), _Repeats()
    if repeats is not None:
        few = many = _Repeats(repeats, repeats)
    each = _measured(
        traces, traces.layer_partition, traces.microbatch_size, arguments, batches, few
    )
    apart = np.array(each.seconds)
    whole = _measured(
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
        update_seconds=_update_seconds(traces, arguments, whole.sums, many) * by_bytes,
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
    batches = _Batches(num_microbatches, num_microbatches > 1)
    measured = _measured(traces, cut, traces.microbatch_size, arguments, batches, _Repeats())
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
    traces: SizedTraces, call_arguments: Any, batches: "_Batches", repeats: _Repeats
) -> list[float] | None:
    """Return forward and backward seconds of one rank's share of a microbatch; None without one."""
    size = traces.shard_size
    if size is None:
        return None
    try:
        traces.axes(size)  # raises if the computation differs at this size
        cut = traces.partition([0], size)
        arguments = traces.named_arguments(call_arguments, size)
        return _measured(traces, cut, size, arguments, batches, repeats).seconds
    except Exception:  # the script may reject so few examples; planning works without their time
        return None


class _Batches(NamedTuple):
    """Batches of a step, one of which is measured.

    Attributes:
        number: number of batches, whose gradients are added.
        defers: whether large gradients are computed once for all.
        reductions: names of the reductions that may be deferred; None allows all.
    """

    number: int
    defers: bool
    reductions: frozenset[str] | None = None

    def find_deferred(self, cut: StagePartition, stage: int) -> tuple[DeferredGradient, ...]:
        """Return the gradients of a stage that are computed once."""
        found = find_deferred_gradients(cut, stage, self.number) if self.defers else ()
        allowed = self.reductions
        return tuple(each for each in found if allowed is None or each.reduction in allowed)


class _Measured(NamedTuple):
    """Result of running one microbatch.

    Attributes:
        seconds: seconds of each phase.
        deferred: by stage, seconds of the gradients that are computed once for all microbatches.
        reductions: names of the reductions of these gradients.
        sums: gradient sums by the names of reductions.
    """

    seconds: list[float]
    deferred: list[float]
    reductions: frozenset[str]
    sums: dict[str, Any]


def _measured(
    traces: SizedTraces,
    cut: StagePartition,
    size: int,
    arguments: dict[str, Any],
    batches: _Batches,
    repeats: _Repeats,
) -> _Measured:
    """Run each phase of a partition repeatedly, for microbatches of `size` examples.

    The phases alternate, as in a step, so that each finds the caches as other phases leave them.
    Ops that only write are left out. A writing op whose result other ops read does run, for example
    an op that reads and advances a random state. Its variables are restored afterwards.
    """
    graph, extraction = cut.graph, traces.extractor(size)
    without = {
        graph.ops[index].name for index in graph.microbatch_effects if not graph.ops[index].outputs
    }
    sent = {message.tensor for message in cut.messages}
    values: dict[str, Any] = {}
    runs: list[Callable[[], None]] = []
    late: dict[int, Callable[[], None]] = {}
    reductions: set[str] = set()
    with _restored(traces, graph, graph.microbatch_effects):
        for phase, part in enumerate(cut.subgraphs):
            stage = cut.stage_of_phase(phase)
            reducing, sums = None, {}
            if phase == cut.backward_phase(stage):
                deferred = batches.find_deferred(cut, stage)
                reductions |= {each.reduction for each in deferred}
                part = without_deferred(part, deferred)
                reducing = GradientReduction.for_stage(cut, stage, sent, deferred)
                if deferred:
                    late[stage] = _deferred_run(
                        cut, extraction, reducing, deferred, values, batches.number
                    )
                reducing = replace(reducing, accumulates=batches.number > 1)
                variables = {name: reducing.variables[name] for name in reducing.inputs}
                sums = {name: tf.zeros(v.shape, v.dtype) for name, v in variables.items()}
            ops = tuple(name for name in part.ops if name not in without)
            function = SubgraphFunction.build(extraction, replace(part, ops=ops), reducing)

            def run(function: SubgraphFunction = function, sums: dict[str, Any] = sums) -> None:
                values.update(function(arguments, values, sums))

            run()
            runs.append(run)
        for run_late in late.values():
            run_late()
        seconds = _steady_state_seconds([*runs, *late.values()], repeats)
    names = [name for reduction in cut.reductions for name in reduction]
    by_stage = dict(zip(late, seconds[len(runs) :], strict=True))
    return _Measured(
        seconds[: len(runs)],
        [by_stage.get(stage, 0.0) for stage in range(cut.num_stages)],
        frozenset(reductions),
        {name: values[sum_key(name)] for name in names},
    )


def _deferred_run(
    cut: StagePartition,
    extractor: SubgraphExtractor,
    reduction: GradientReduction,
    deferred: tuple[DeferredGradient, ...],
    values: dict[str, Any],
    count: int,
) -> Callable[[], None]:
    """Return what computes a stage's deferred gradients for `count` like batches."""
    names = [each.reduction for each in deferred]
    epilogue = DeferredReduction.for_partition(
        cut, replace(reduction, names=()), names, deferred, range(count)
    )
    function = SubgraphFunction.build(extractor, NO_OPS, epilogue)

    def run() -> None:
        stored = {
            tensor_key(name, m): values[name] for name in epilogue.tensors for m in range(count)
        }
        values.update(function({}, {}, stored))

    return run


def _update_seconds(
    traces: SizedTraces,
    arguments: dict[str, Any],
    gradients: dict[str, Any],
    repeats: _Repeats,
) -> float:
    """Return the seconds of updating all variables; 0 if the update cannot be undone."""
    cut = traces.partition([0])
    graph, extraction = cut.graph, traces.extractor(traces.microbatch_size)
    ops = [graph.ops[index] for index in graph.update_effects]
    called = extraction.library([op.name for op in ops]).function
    nodes = [
        *(op.node_def for op in ops),
        *(node for function in called for node in function.node_def),
    ]
    used = {name for index in graph.update_effects for name in graph.handles[index]}
    if (
        not all(map(conditional_updates.writes_only_variables, nodes))
        or not used <= traces.captured_variables.keys()
    ):
        return 0.0
    update = UpdatePhase(cut)
    values = {f"{name}:0": gradient for name, gradient in gradients.items()}
    rounds = [
        SubgraphFunction.build(extraction, update.subgraph((0,), number))
        for number in range(update.num_rounds)
    ]

    def run() -> None:
        found = dict(values)
        for function in rounds:
            found |= function(arguments, found)

    with _restored(traces, graph, graph.update_effects):
        run()
        return _steady_state_seconds([run], repeats)[0]


@contextlib.contextmanager
def _restored(traces: SizedTraces, graph: StepGraph, writes: Sequence[int]) -> Iterator[None]:
    """Restore the variables that the ops at `writes` modify."""
    handles = {name for index in writes for name in graph.handles[index]}
    captured = traces.captured_variables.items()
    before = [(variable, variable.read_value()) for name, variable in captured if name in handles]
    try:
        yield
    finally:
        for variable, value in before:
            variable.assign(value)


def _steady_state_seconds(runs: Sequence[Callable[[], Any]], repeats: _Repeats) -> list[float]:
    """Return the median seconds of each run; steps take the typical time, not the shortest."""
    seconds: list[list[float]] = []
    until = time.perf_counter() + _LONG_ENOUGH
    while len(seconds) < repeats.fewest or (
        len(seconds) < repeats.most and time.perf_counter() < until
    ):
        seconds.append([_timed(run) for run in runs])
    return [float(median) for median in np.median(seconds, axis=0)]


def _timed(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    tf.test.experimental.sync_devices()
    return time.perf_counter() - start


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
