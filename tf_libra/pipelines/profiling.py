"""What the layers of a step take, measured before planning."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_libra.backends.control import Control
from tf_libra.model.layers import LayerGraph
from tf_libra.pipelines.cutting import Cut
from tf_libra.pipelines.traces import Traces

_REPEATS = 3


def measured_layers(traces: Traces, arguments: dict[str, Any]) -> LayerGraph:
    """Runs one microbatch, forward and backward, without any effect.

    Each layer runs by itself, which takes its call each time; so what they take is scaled to what
    all take at once.

    Args:
        traces: of the step.
        arguments: tensors by name, as many samples as a microbatch has.

    Raises:
        ValueError: the step cannot be cut between some of its layers.
    """
    layers = traces.whole.layers
    count = len(layers)
    cut = traces.each_layer
    apart = np.array(_seconds(traces, cut, arguments))
    whole = _seconds(traces, traces.cut([0]), arguments)
    forward = apart[:count] * whole[0] / apart[:count].sum()
    backward = apart[: count - 1 : -1] * whole[1] / apart[count:].sum()
    return LayerGraph.chain(
        forward,
        backward,
        [layer.parameter_bytes for layer in layers],
        crossing_bytes(cut),
        [layer.name for layer in layers],
    )


def _seconds(traces: Traces, cut: Cut, arguments: dict[str, Any]) -> list[float]:
    """What each part of a cut takes.

    What only writes is left out; what others go on with, as a random state that is read and moved
    on at once, has its variables restored.
    """
    graph, extraction = cut.graph, traces.extraction(traces.size)
    without = {graph.ops[place].name for place in graph.writes if not graph.ops[place].outputs}
    used = {name for place in graph.writes for name in graph.handles[place]}
    captured = traces.captured.items()
    before = [(one, one.read_value()) for name, one in captured if name in used]
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
