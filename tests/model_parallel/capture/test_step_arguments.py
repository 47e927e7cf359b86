"""Keys of the arguments for which a model-parallel step is traced."""

import dataclasses

import tensorflow as tf

from tf_libra.model_parallel.capture.step_arguments import (
    convert_arguments,
    signature,
    trace_key,
)

IMAGES = tf.zeros([4, 3])


class Trainer:
    """An object whose method is the step."""


def test_trace_key_of_distinct_objects_differs_and_signature_is_equal():
    """Each object has traces of its own, and every rank has an object of its own."""
    first, second = Trainer(), Trainer()
    arguments = [convert_arguments("step", ((each, IMAGES), {})) for each in (first, second)]
    assert arguments[0][0][0] is first
    assert signature(arguments[0]) == signature(arguments[1]) == ["Trainer", "float32 (4, 3)"]
    assert trace_key(arguments[0]) != trace_key(arguments[1])
    again = convert_arguments("step", ((first, IMAGES), {}))
    assert trace_key(arguments[0]) == trace_key(again)


def test_trace_key_of_equal_objects_is_equal():
    """A settings object that the caller rebuilds for every call causes no retracing."""

    @dataclasses.dataclass(frozen=True)
    class Settings:
        rate: float

    keys = [
        trace_key(convert_arguments("step", ((Settings(rate), IMAGES), {})))
        for rate in (0.5, 0.5, 0.25)
    ]
    assert keys[0] == keys[1] != keys[2]


def test_signature_of_different_literals_differs():
    kinds = [signature(((IMAGES, value), {})) for value in (0, 1, True, None, "1")]
    assert len(set(map(tuple, kinds))) == 5
