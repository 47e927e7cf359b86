"""Training inside of tf.data: loops over a dataset are made loops of the graph."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_libra.capture.dataflow.forward import functions_of
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


def all_reduced_by_datasets(graph: Any) -> set[str]:
    """Names of the gradients that functions of tf.data all-reduce, which no pass sees."""
    definition = graph.as_graph_def()
    bodies = {body.signature.name: body for body in definition.library.function}
    inside = [name for name, body in bodies.items() if body.attr["_tf_data_function"].b]
    for name in inside:  # grows while it is walked
        for node in bodies[name].node_def:
            called = (one.signature.name for one in functions_of(node, bodies))
            inside += [one for one in called if one not in inside]
    return {
        tensor.decode()
        for name in inside
        for node in bodies[name].node_def
        if node.op == "LibraAllReduce"
        for tensor in node.attr["tensor_names"].list.s
    }
