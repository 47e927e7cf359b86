"""Gradients that the body of `tf.vectorized_map` asks for: of one example each, a rank's own.

The body is traced once, and its ops are rewritten for all examples. A rank has examples that no
other rank has: what comes out is treated as a jacobian is (see `jacobians`).
"""

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_libra.capture import jacobians
from tf_libra.capture.gradient_provenance import ancestors, tensors_of
from tf_libra.capture.gradient_registry import GradientRegistry, PerExampleGradient
from tf_libra.capture.variables import plain, variable_name
from tf_libra.internal import tf_internal


def kept_local(marks: GradientRegistry) -> Callable[[Any], Any]:
    """Replaces what `tf.vectorized_map` ends in: nothing that its body computes is averaged."""

    def make(original: Any) -> Any:
        def call(body: Any, *args: Any, **kwargs: Any) -> Any:
            if not marks.concerned or marks.of_examples is not None:
                return original(body, *args, **kwargs)
            made_of: list[PerExampleGradient | None] = []

            @tf_internal.autograph_artifact
            def recorded(i: Any, **config: Any) -> Any:
                results = tf_internal.convert_to_autograph(body, tf_internal.autograph_context())(
                    i, **config
                )
                made_of[:] = [_gradient_in(one, marks) for one in tf.nest.flatten(results)]
                return results

            recorded.__signature__ = inspect.signature(body)  # of it TensorFlow asks what it takes
            with marks.of_each_example():
                results = original(recorded, *args, **kwargs)
            flat = tf.nest.flatten(results)
            handed = [
                one if gradient is None else jacobians.labelled(one, gradient, marks)
                for one, gradient in zip(flat, made_of, strict=True)
            ]
            return tf.nest.pack_sequence_as(results, handed)

        return call

    return make


def note(marks: GradientRegistry, sources: Any, gradients: Any) -> None:
    """Remembers gradients of one example."""
    assert marks.of_examples is not None
    flat = zip(tf.nest.flatten(sources), tf.nest.flatten(gradients), strict=True)
    for source, gradient in flat:
        if not isinstance(plain(source), tf.Variable):
            continue
        if gradient is None:
            marks.missing.append(variable_name(source))
        else:
            marks.of_examples.append(PerExampleGradient(variable_name(source), source, gradient))


def _gradient_in(result: Any, marks: GradientRegistry) -> PerExampleGradient | None:
    """The gradient that something was made of, of several the nearest."""
    known = {
        id(part): one
        for one in marks.of_examples or ()
        for part in tf.nest.flatten(one.gradient, expand_composites=True)
    }
    before = [
        one
        for part in tensors_of(result)
        for one in ancestors(part, lambda tensor: id(tensor) in known)
    ]
    for one in before:
        if id(one) in known:
            return known[id(one)]
    # What a function has computed that the body calls is not looked into.
    here = tf.compat.v1.get_default_graph()
    elsewhere = [one for one in marks.of_examples or () if _graph_of(one.gradient) is not here]
    alike = (one for one in elsewhere if one.gradient.shape == getattr(result, "shape", None))
    return next(alike, elsewhere[0]) if before and elsewhere else None


def _graph_of(gradient: Any) -> Any:
    return tf.nest.flatten(gradient, expand_composites=True)[0].graph
