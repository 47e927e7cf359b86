"""Traces of small steps, and what is found in their graphs; no engine is needed for that."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_libra.capture.dataflow import traced_graph
from tf_libra.capture.gradient_registry import ReducedGradient, ReductionPolicy
from tf_libra.capture.instrumented_function import InstrumentedFunction, Trace

INPUTS = tf.TensorSpec([2, 4])


class Traces:
    """The traces that `on_traced` received."""

    def __init__(self) -> None:
        self.traces: list[Trace] = []

    def add(self, trace: Trace) -> None:
        self.traces.append(trace)

    @property
    def marked(self) -> list[tuple[ReducedGradient, ...]]:
        return [trace.reduced for trace in self.traces]

    def names(self, trace: int = -1) -> list[str]:
        return [gradient.name for gradient in self.marked[trace]]


def chain(dtype: str = "float32") -> list[tf.Variable]:
    return [tf.Variable(tf.ones([4, 4], dtype), name=f"layer{i}") for i in range(4)]


def loss_of(layers: list[tf.Variable], inputs: tf.Tensor) -> tf.Tensor:
    for layer in layers:
        inputs = tf.tanh(inputs @ layer)
    return tf.reduce_sum(inputs)


def all_reduces(concrete: Any) -> list[str]:
    """Names of what a graph all-reduces, that of functions in it included."""
    trace = traced_graph.read(concrete.graph)
    return [name for node in trace.all_nodes() for name in node.tensor_names]


def traced(step: Callable[..., Any], *args: Any, **rules: Any) -> tuple[Trace, list[str]]:
    """Traces a step once: returns its trace, and the names that its graph all-reduces."""
    traces = Traces()
    function: InstrumentedFunction = InstrumentedFunction(
        step, traces.add, lambda: ReductionPolicy(**rules)
    )
    concrete = function.get_concrete_function(*(args or (INPUTS,)))
    return traces.traces[-1], all_reduces(concrete)
