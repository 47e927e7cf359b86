"""The kinds of arguments that a model-parallel step is traced for."""

import dataclasses

import tensorflow as tf

from tf_libra.model_parallel.capture.step_arguments import as_tensors, key, signature

IMAGES = tf.zeros([4, 3])


class Trainer:
    """Whose method is the step."""


def test_objects_are_told_apart_here_and_are_alike_on_all_ranks():
    one, other = Trainer(), Trainer()
    first, second = (as_tensors("step", ((each, IMAGES), {})) for each in (one, other))
    assert first[0][0] is one
    assert signature(first) == signature(second) == ["Trainer", "float32 (4, 3)"]
    assert key(first) == key(as_tensors("step", ((one, IMAGES), {})))
    assert key(first) != key(second)


def test_objects_that_are_equal_are_one():
    """Otherwise a setting that is made again for every call would be traced again."""

    @dataclasses.dataclass(frozen=True)
    class Setting:
        rate: float

    keys = [key(as_tensors("step", ((Setting(rate), IMAGES), {}))) for rate in (0.5, 0.5, 0.25)]
    assert keys[0] == keys[1] != keys[2]


def test_values_are_told_apart_everywhere():
    kinds = [signature(((IMAGES, value), {})) for value in (0, 1, True, None, "1")]
    assert len(set(map(tuple, kinds))) == 5
