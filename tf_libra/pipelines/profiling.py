"""What the layers of a step take, and how fast ranks reach each other: measured before planning."""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_libra.backends.control import Control
from tf_libra.model.cluster import Cluster
from tf_libra.model.layers import LayerGraph
from tf_libra.pipelines.cutting import Cut
from tf_libra.pipelines.extracting import Extraction
from tf_libra.pipelines.holding import held
from tf_libra.pipelines.step_graph import StepGraph
from tf_libra.pipelines.transport import Transport

_REPEATS = 3
_PROBE_BYTES = 1 << 20


def measured_layers(graph: StepGraph, arguments: dict[str, Any]) -> LayerGraph:
    """Runs one microbatch, forward and backward, without any effect.

    Each layer runs by itself, which takes its call each time; so what they take is scaled to what
    all take at once.

    Args:
        graph: the step, traced for one microbatch.
        arguments: tensors by name, as many samples as that.

    Raises:
        ValueError: the step cannot be cut between some of its layers.
    """
    count = len(graph.layers)
    extraction = Extraction(graph.recording.concrete)
    cut = Cut(graph, range(count))
    apart = np.array(_seconds(cut, extraction, arguments))
    whole = _seconds(Cut(graph, [0]), extraction, arguments)
    forward = apart[:count] * whole[0] / apart[:count].sum()
    backward = apart[: count - 1 : -1] * whole[1] / apart[count:].sum()
    return LayerGraph.chain(
        forward,
        backward,
        [layer.parameter_bytes for layer in graph.layers],
        crossing_bytes(cut),
        [layer.name for layer in graph.layers],
    )


def _seconds(cut: Cut, extraction: Extraction, arguments: dict[str, Any]) -> list[float]:
    """What each part of a cut takes.

    What only writes is left out; what others go on with, as a random state that is read and moved
    on at once, has its variables restored.
    """
    graph = cut.graph
    without = {graph.ops[place].name for place in graph.writes if not graph.ops[place].outputs}
    used = {name for place in graph.writes for name in graph.handles[place]}
    before = [(one, one.read_value()) for name, one in held(graph).items() if name in used]
    values = {f"{name}:0": tensor for name, tensor in arguments.items()}
    seconds = []
    for part in cut.parts:
        takes = [*(f"{name}:0" for name in part.arguments), *part.takes]
        ops = [name for name in part.ops if name not in without]
        function = extraction.function(ops, takes, part.gives)
        given = [values[name] for name in takes]
        values |= dict(zip(part.gives, function(given), strict=True))
        seconds.append(min(_timed(function, given) for _ in range(_REPEATS)))
    for one, value in before:
        one.assign(value)
    return seconds


def _timed(function: Callable[[Sequence[Any]], Any], given: Sequence[Any]) -> float:
    start = time.perf_counter()
    function(given)
    tf.test.experimental.sync_devices()
    return time.perf_counter() - start


def crossing_bytes(cut: Cut) -> list[float]:
    """What crosses each cut of a step, of one microbatch; the larger of the two ways."""
    forward, backward = np.zeros(cut.num_stages - 1), np.zeros(cut.num_stages - 1)
    for message in cut.messages:
        tensor = cut.tensor(message.tensor)
        size = tensor.shape.num_elements() * tensor.dtype.size
        if message.source < message.target:
            forward[message.source : message.target] += size
        else:
            backward[message.target : message.source] += size
    return [float(size) for size in np.maximum(forward, backward)]


def averaged(layers: LayerGraph, control: Control) -> LayerGraph:
    """The means of what all ranks have measured, all of which call this."""
    everyone = control.all_gather(
        [layers.forward_seconds.tolist(), layers.backward_seconds.tolist()]
    )
    forward, backward = np.mean(everyone, axis=0)
    return LayerGraph.chain(
        forward, backward, layers.parameter_bytes, layers.activation_bytes, layers.names
    )


def measured_cluster(transport: Transport, control: Control) -> Cluster:
    """The rate between every two ranks, all of which call this: one pair after the other."""
    rates = np.zeros([control.world_size] * 2)
    probe = tf.zeros([_PROBE_BYTES // 4])
    for one, other, seconds in _round_trips(transport, control, probe):
        rates[one, other] = rates[other, one] = 2 * _PROBE_BYTES / max(seconds, 1e-9)
    return Cluster.from_bandwidth(rates)


def measured_all_reduces(
    transport: Transport, control: Control, counts: Sequence[int]
) -> list[float]:
    """The bytes per second of an all-reduce among as many first ranks, all of which call this.

    Args:
        transport: reaches the other ranks.
        control: likewise.
        counts: numbers of ranks, ascending, from 1, which all-reduces nothing.
    """
    rates = [1.0]
    probe = tf.zeros([_PROBE_BYTES // 4])
    for count in counts[1:]:
        seconds = 0.0
        if control.rank < count:
            given = (probe, tuple(range(count)), "probe")
            seconds = min(
                _timed(lambda given: transport.all_reduce(*given), given) for _ in range(_REPEATS)
            )
        rates.append(_PROBE_BYTES / max(*control.all_gather(seconds), 1e-9))
    return rates


def measured_latency(transport: Transport, control: Control) -> float:
    """What a small message takes from one rank to another, in the mean over all pairs of ranks."""
    trips = _round_trips(transport, control, tf.zeros([1]))
    return float(np.mean([seconds / 2 for _, _, seconds in trips]))


def _round_trips(
    transport: Transport, control: Control, probe: Any
) -> Iterator[tuple[int, int, float]]:
    """Every two ranks, one pair after the other, with the seconds of a probe there and back."""
    for pair in itertools.combinations(range(control.world_size), 2):
        seconds = 0.0
        if control.rank in pair:
            one, other = pair
            peer = other if control.rank == one else one
            seconds = min(
                _round_trip(transport, probe, peer, is_first=control.rank == one)
                for _ in range(_REPEATS)
            )
        yield *pair, control.all_gather(seconds)[pair[0]]


def _round_trip(transport: Transport, probe: Any, peer: int, is_first: bool) -> float:
    start = time.perf_counter()
    if is_first:
        transport.send(probe, peer, "probe")
    transport.receive(probe.dtype, probe.shape, peer, "probe")
    if not is_first:
        transport.send(probe, peer, "probe")
    return time.perf_counter() - start
