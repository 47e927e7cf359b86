"""The values that Horovod's collectives train with, by traces alone.

`test_horovod_scripts` trains.
"""

from collections.abc import Callable
from typing import Any

import horovod.tensorflow as hvd
import pytest
import tensorflow as tf

from tests.capture.traces import chain, loss_of, traced

pytestmark = pytest.mark.usefixtures("horovod")
Layers = list[tf.Variable]
EVERY = [f"layer{i}" for i in range(4)]


def slopes_of(layers: Layers, inputs: Any) -> Any:
    with tf.GradientTape() as tape:
        loss = loss_of(layers, inputs)
    return tape.gradient(loss, layers)


def descend(layers: Layers, slopes: Any) -> None:
    for layer, slope in zip(layers, slopes, strict=True):
        layer.assign_sub(0.1 * tf.reshape(slope, layer.shape))


def flat(tensors: Any) -> Any:
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)


def grouped_halves(layers: Layers, inputs: Any) -> None:
    slopes = slopes_of(layers, inputs)
    halves = hvd.grouped_allreduce([flat(slopes[:2]), flat(slopes[2:])])
    descend(layers, tf.split(tf.concat(halves, 0), 4))


def scattered(layers: Layers, inputs: Any) -> None:
    share = hvd.reducescatter(flat(slopes_of(layers, inputs)))
    descend(layers, tf.split(tf.reshape(hvd.allgather(share), [64]), 4))


def dealt(layers: Layers, inputs: Any) -> None:
    got, _ = hvd.alltoall(flat(slopes_of(layers, inputs)), splits=tf.constant([64]))
    descend(layers, tf.split(tf.reshape(hvd.allgather(got), [64]), 4))


def of_low_rank(layers: Layers, inputs: Any) -> None:
    for layer, slope in zip(layers, slopes_of(layers, inputs), strict=True):
        left = hvd.allreduce(slope @ tf.ones([4, 1]))
        right = hvd.allreduce(tf.transpose(slope) @ left)
        layer.assign_sub(0.1 * left @ tf.transpose(right))


@pytest.mark.parametrize("train", [grouped_halves, scattered, dealt, of_low_rank])
def test_gradients_reduced_in_another_shape_are_left_to_horovod(
    train: Callable[..., None],
) -> None:
    layers = chain()
    trace, found = traced(lambda inputs: train(layers, inputs))
    assert found == []
    assert trace.left == dict.fromkeys(EVERY, "in another shape")


# What is averaged by us all the same.


def with_figures(layers: Layers, inputs: Any) -> None:
    """Shown, or kept in a variable that no weight is made of."""
    slopes = slopes_of(layers, inputs)
    steepness.assign(hvd.allreduce(tf.stack([tf.norm(slope) for slope in slopes])))
    descend(layers, slopes)


def clipped_by_a_common_norm(layers: Layers, inputs: Any) -> None:
    slopes = slopes_of(layers, inputs)
    norm = hvd.allreduce(tf.linalg.global_norm(slopes))
    descend(layers, [slope / norm for slope in slopes])


def by_statistics_of_all(layers: Layers, inputs: Any) -> None:
    """Normalizes a batch over all ranks, with weights that were just moved."""
    slopes = slopes_of(layers, inputs)
    moved = [a - 0.1 * b for a, b in zip(layers, slopes, strict=True)]
    with tf.GradientTape() as tape:
        tape.watch(moved)
        means = hvd.allreduce(tf.reduce_mean(inputs @ moved[0], 0))
        loss = loss_of(moved, inputs - means)
    descend(layers, tape.gradient(loss, moved))


def with_an_average_of_weights(layers: Layers, inputs: Any) -> None:
    """Keeps an average of weights, from which no weight is made."""
    descend(layers, slopes_of(layers, inputs))
    average.assign(0.9 * average + 0.1 * hvd.allreduce(layers[0]))


steepness = tf.Variable(tf.zeros([4]), trainable=False)
average = tf.Variable(tf.zeros([4, 4]), trainable=False)


@pytest.mark.parametrize(
    "train",
    [with_figures, clipped_by_a_common_norm, by_statistics_of_all, with_an_average_of_weights],
)
def test_other_reductions_by_horovod_leave_gradients_planned(train: Callable[..., None]) -> None:
    layers = chain()
    trace, found = traced(lambda inputs: train(layers, inputs))
    assert trace.left == {}
    assert {name.partition("#")[0] for name in found} == {*EVERY}
