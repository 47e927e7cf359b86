"""Training inside of tf.data: loops over a dataset are made loops of the graph."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_libra.capture.dataflow.traced_graph import TracedGraph
from tf_libra.capture.gradient_registry import GradientRegistry
from tf_libra.internal import tf_internal


def of_the_graph(marks: GradientRegistry) -> Callable[[Any], Any]:
    """Replaces the lookup by which AutoGraph chooses a loop: over a dataset it uses an iterator.

    AutoGraph makes the body of such a loop a function of tf.data, which no pass of TensorFlow's
    sees; that of a loop over an iterator is a part of the graph.
    """

    def make(original: Any) -> Any:
        def lookup(iterated: Any) -> Any:
            usual = original(iterated)
            if not (isinstance(iterated, tf.data.Dataset) and marks.is_tracing_thread()):
                return usual

            def loop(
                dataset: Any, extra_test: Any, body: Any, get_state: Any, set_state: Any, *rest: Any
            ) -> None:
                state = get_state()
                try:
                    tf_internal.iterator_loop(
                        iter(dataset), extra_test, body, get_state, set_state, *rest
                    )
                except ValueError:  # tf.data allows what changes its shape from step to step
                    set_state(state)
                    usual(dataset, extra_test, body, get_state, set_state, *rest)

            return loop

        return lookup

    return make


def all_reduced_by_datasets(trace: TracedGraph) -> set[str]:
    """Names of the gradients that functions of tf.data all-reduce, which no pass sees."""
    functions = [name for name, body in trace.functions.items() if body.is_of_dataset]
    return {name for node in trace.nodes_within(functions) for name in node.tensor_names}
