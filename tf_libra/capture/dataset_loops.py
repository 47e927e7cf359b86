"""Training inside tf.data: loops over a dataset become loops of the graph."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_libra.capture.dataflow.traced_graph import TracedGraph
from tf_libra.capture.gradient_registry import GradientRegistry
from tf_libra.internal import tf_internal


def loop_in_graph(registry: GradientRegistry) -> Callable[[Any], Any]:
    """Replaces AutoGraph's choice of a loop: a loop over a dataset uses an iterator.

    AutoGraph makes the body of a loop over a dataset a function of tf.data, which no TensorFlow
    pass sees. The body of a loop over an iterator is a part of the graph.
    """

    def make(original: Any) -> Any:
        def lookup(iterated: Any) -> Any:
            default = original(iterated)
            if not (isinstance(iterated, tf.data.Dataset) and registry.is_tracing_thread()):
                return default

            def loop(
                dataset: Any, extra_test: Any, body: Any, get_state: Any, set_state: Any, *rest: Any
            ) -> None:
                state = get_state()
                try:
                    tf_internal.iterator_loop(
                        iter(dataset), extra_test, body, get_state, set_state, *rest
                    )
                except ValueError:  # tf.data alone allows loop variables that change their shape
                    set_state(state)
                    default(dataset, extra_test, body, get_state, set_state, *rest)

            return loop

        return lookup

    return make


def gradients_in_datasets(trace: TracedGraph) -> set[str]:
    """Returns the gradients that functions of tf.data all-reduce, which no pass sees."""
    functions = [name for name, body in trace.functions.items() if body.is_of_dataset]
    return {name for node in trace.nodes_within(functions) for name in node.tensor_names}
