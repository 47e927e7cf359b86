"""Arguments of a step: conversion to tensors, batch size, and the key of a trace."""

from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf_libra.internal import tf_internal
from tf_libra.model_parallel.capture.step_graph import StepGraph

_UNSUPPORTED = (tf_internal.CompositeTensor, tf.Variable, Iterator)


def convert_arguments(step: str, arguments: Any) -> Any:
    """Returns arguments with arrays as tensors; other Python objects stay as they are.

    Raises:
        ValueError: an argument is a variable, an iterator, a composite tensor, or not hashable.
    """

    def convert(value: Any) -> Any:
        if isinstance(value, np.ndarray | np.generic):
            return tf.convert_to_tensor(value)
        if tf.is_tensor(value) and isinstance(value, tf.Tensor):
            return value
        if (
            tf.is_tensor(value)
            or isinstance(value, _UNSUPPORTED)
            or not isinstance(value, Hashable)
        ):
            raise ValueError(
                f"{step}: unsupported argument of type {type(value).__name__}; a model-parallel"
                " step takes tensors, arrays and hashable Python objects"
            )
        return value

    return tf.nest.map_structure(convert, arguments)


def check_example_dtypes(graph: StepGraph) -> None:
    """Raises `ValueError` if the step needs examples that cannot be sent to another rank."""
    for name in graph.arguments:
        index = graph.op_index[name]
        dtype = graph.ops[index].outputs[0].dtype
        is_number = dtype.is_floating or dtype.is_integer or dtype == tf.bool
        if graph.is_per_example[index] and index in graph.microbatch_ops and not is_number:
            raise ValueError(
                f"{graph.recording.name}: argument {name!r} has dtype {dtype.name}, and stages send"
                " numbers only; convert it before the step, for example look up words in the"
                " dataset"
            )


def batch_size(step: str, arguments: Any) -> int:
    """Returns the first dimension, which all tensors share.

    Raises:
        ValueError: first dimensions differ or are 0, or there is no tensor.
    """
    sizes = {
        int(leaf.shape[0])
        for leaf in tf.nest.flatten(arguments)
        if tf.is_tensor(leaf) and leaf.shape.rank != 0
    }
    if len(sizes) != 1 or 0 in sizes:
        raise ValueError(
            f"{step}: all tensor arguments must have the same number of examples, at least 1, along"
            f" the first dimension, got {sorted(sizes)}"
        )
    return sizes.pop()


def argument_specs(arguments: Any, size: int) -> Any:
    """Returns the specs of tensors and `tf.TensorSpec`s for another batch size."""

    def spec(value: Any) -> Any:
        if not (tf.is_tensor(value) or isinstance(value, tf.TensorSpec)):
            return value
        shape = value.shape.as_list()
        return tf.TensorSpec([size, *shape[1:]] if shape else [], value.dtype)

    return tf.nest.map_structure(spec, arguments)


def signature(arguments: Any) -> list[str]:
    """Returns the kinds of the arguments as JSON values that are the same on every rank."""

    def kind(value: Any) -> str:
        if tf.is_tensor(value):
            return f"{value.dtype.name} {value.shape}"
        return repr(value) if _is_literal(value) else type(value).__qualname__

    return [kind(leaf) for leaf in tf.nest.flatten(arguments)]


def trace_key(arguments: Any) -> tuple[Hashable, ...]:
    """Returns a key that is equal for arguments that share a trace, as equal objects do."""
    leaves = tf.nest.flatten(arguments)
    objects = [leaf for leaf in leaves if not (tf.is_tensor(leaf) or _is_literal(leaf))]
    return (*signature(arguments), *objects)


def _is_literal(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def resize_batch(arguments: Any, size: int) -> Any:
    """Returns arguments with `size` examples, repeated if the batch has fewer."""

    def resize(value: Any) -> Any:
        if not tf.is_tensor(value):
            return value
        if value.shape.rank == 0:
            return tf.identity(value)  # each leaf must be another tensor
        return tf.gather(value, tf.range(size) % value.shape[0])

    return tf.nest.map_structure(resize, arguments)


def flatten_tensors(arguments: Any) -> list[Any]:
    """Returns the tensors among arguments, flattened."""
    return [leaf for leaf in tf.nest.flatten(arguments) if tf.is_tensor(leaf)]
