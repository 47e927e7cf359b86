"""A step's arguments: which are samples, and how many."""

from typing import Any

import numpy as np
import tensorflow as tf


def as_tensors(step: str, value: Any) -> Any:
    """Arguments with arrays as tensors.

    Raises:
        ValueError: one is neither a tensor nor a value of Python.
    """

    def convert(one: Any) -> Any:
        if isinstance(one, np.ndarray | np.generic):
            return tf.convert_to_tensor(one)
        if tf.is_tensor(one) and isinstance(one, tf.Tensor):
            return one
        if one is None or isinstance(one, bool | int | float | str):
            return one
        raise ValueError(
            f"{step} is given a {type(one).__name__}: a step in stages divides tensors and arrays"
            " among ranks, and takes numbers and texts as they are"
        )

    return tf.nest.map_structure(convert, value)


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
    """What says the same arguments, tensors or `tf.TensorSpec`s, for batches of another size."""

    def spec(one: Any) -> Any:
        if not (tf.is_tensor(one) or isinstance(one, tf.TensorSpec)):
            return one
        shape = one.shape.as_list()
        return tf.TensorSpec([size, *shape[1:]] if shape else [], one.dtype)

    return tf.nest.map_structure(spec, arguments)


def signature(arguments: Any) -> list[str]:
    """What kind of arguments they are, as JSON can say it."""
    return [
        f"{one.dtype.name} {one.shape}" if tf.is_tensor(one) else repr(one)
        for one in tf.nest.flatten(arguments)
    ]


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
