"""A step's arguments: which are samples, and how many."""

from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf_libra.internal import tf_internal

_NOT_DIVIDED = (tf_internal.CompositeTensor, tf.Variable, Iterator)


def as_tensors(step: str, value: Any) -> Any:
    """Arguments with arrays as tensors; other objects, such as a method's, are as they were.

    Raises:
        ValueError: one has samples that cannot be divided, is a variable, or has no hash.
    """

    def convert(one: Any) -> Any:
        if isinstance(one, np.ndarray | np.generic):
            return tf.convert_to_tensor(one)
        if tf.is_tensor(one) and isinstance(one, tf.Tensor):
            return one
        if tf.is_tensor(one) or isinstance(one, _NOT_DIVIDED) or not isinstance(one, Hashable):
            raise ValueError(
                f"{step} is given a {type(one).__name__}: a step in stages divides tensors and"
                " arrays among ranks, and takes other objects of Python, if they have a hash, as"
                " they are"
            )
        return one

    return tf.nest.map_structure(convert, value)


def check_numbers(graph: Any) -> None:
    """Raises `ValueError` where a step needs samples that cannot be sent to another rank.

    Args:
        graph: the step, a `StepGraph`.
    """
    for name in graph.arguments:
        place = graph.place[name]
        dtype = graph.ops[place].outputs[0].dtype
        is_number = dtype.is_floating or dtype.is_integer or dtype == tf.bool
        if graph.sample[place] and place in graph.needed and not is_number:
            raise ValueError(
                f"{graph.recording.name} is given {name!r}, samples of {dtype.name}: a step in"
                " stages sends samples to the ranks that need them, and sends numbers only; look"
                " words up before the step, as in the dataset"
            )


def num_samples(step: str, arguments: Any) -> int:
    """The first dimension that all tensors have.

    Raises:
        ValueError: they have not, or there is none.
    """
    sizes = {
        int(one.shape[0])
        for one in tf.nest.flatten(arguments)
        if tf.is_tensor(one) and one.shape.rank != 0
    }
    if len(sizes) != 1 or 0 in sizes:
        raise ValueError(
            f"the tensors that {step} is given must all have as many samples, at least 1, along"
            f" their first dimension; they have {sorted(sizes)}"
        )
    return sizes.pop()


def sized(arguments: Any, size: int) -> Any:
    """Returns the specs of arguments, tensors or `tf.TensorSpec`s, for batches of another size."""

    def spec(one: Any) -> Any:
        if not (tf.is_tensor(one) or isinstance(one, tf.TensorSpec)):
            return one
        shape = one.shape.as_list()
        return tf.TensorSpec([size, *shape[1:]] if shape else [], one.dtype)

    return tf.nest.map_structure(spec, arguments)


def signature(arguments: Any) -> list[str]:
    """Returns the kinds of the arguments as JSON values that are the same on every rank."""

    def kind(one: Any) -> str:
        if tf.is_tensor(one):
            return f"{one.dtype.name} {one.shape}"
        return repr(one) if _is_value(one) else type(one).__qualname__

    return [kind(one) for one in tf.nest.flatten(arguments)]


def key(arguments: Any) -> tuple[Hashable, ...]:
    """The same for arguments for which a step is traced once, as for objects that are equal."""
    leaves = tf.nest.flatten(arguments)
    objects = [one for one in leaves if not (tf.is_tensor(one) or _is_value(one))]
    return (*signature(arguments), *objects)


def _is_value(one: Any) -> bool:
    return one is None or isinstance(one, bool | int | float | str)


def resampled(arguments: Any, size: int) -> Any:
    """Arguments of so many samples: those of these, over again where they are too few."""

    def resample(one: Any) -> Any:
        if not tf.is_tensor(one):
            return one
        if one.shape.rank == 0:
            return tf.identity(one)  # each leaf is another tensor
        return tf.gather(one, tf.range(size) % one.shape[0])

    return tf.nest.map_structure(resample, arguments)


def tensors(arguments: Any) -> list[Any]:
    """The tensors among arguments, flattened."""
    return [one for one in tf.nest.flatten(arguments) if tf.is_tensor(one)]
