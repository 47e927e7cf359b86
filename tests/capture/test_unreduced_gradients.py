"""Gradients by tensors that are no variables: what of them reaches the weights."""

from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

from tests.capture.traces import chain, loss_of, traced

pytestmark = pytest.mark.usefixtures("horovod")
Layers = list[tf.Variable]
REFUSED = r"step updates 'layer[0-3]' .*rank-local.*local_variables"


def taken(weights: Any, inputs: Any) -> Any:
    """The gradient by whatever it is given."""
    with tf.GradientTape() as tape:
        tape.watch(weights)
        loss = loss_of(weights, inputs)
    return tape.gradient(loss, weights)


def descend(layers: Layers, slopes: Any) -> None:
    for layer, slope in zip(layers, slopes, strict=True):
        layer.assign_sub(0.1 * slope)


def by_arguments(layers: Layers, inputs: Any) -> None:
    descend(layers, tf.function(taken)([layer.read_value() for layer in layers], inputs))


def by_arguments_of_arguments(layers: Layers, inputs: Any) -> None:
    inner = tf.function(taken)
    outer = tf.function(lambda given, data: inner(given, data))
    descend(layers, outer([layer.read_value() for layer in layers], inputs))


def by_parts_of_arguments(layers: Layers, inputs: Any) -> None:
    @tf.function
    def slopes(flat: Any) -> Any:
        return taken([tf.reshape(part, [4, 4]) for part in tf.split(flat, 4)], inputs)

    descend(layers, slopes(tf.concat([tf.reshape(layer, [-1]) for layer in layers], 0)))


def by_an_optimizer(layers: Layers, inputs: Any) -> None:
    slopes = tf.function(taken)([layer.read_value() for layer in layers], inputs)
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(layers)
    optimizer.apply(slopes)


def by_what_it_activates(layers: Layers, inputs: Any) -> None:
    """Backpropagation by hand, of one layer."""
    with tf.GradientTape() as tape:
        activation = inputs @ layers[0]
        tape.watch(activation)
        loss = tf.reduce_sum(tf.tanh(activation))
    slope = tape.gradient(loss, activation)
    layers[0].assign_sub(tf.transpose(inputs) @ slope)


def by_tf_gradients(layers: Layers, inputs: Any) -> None:
    weights = [layer.read_value() for layer in layers]
    descend(layers, tf.gradients(loss_of(weights, inputs), weights))


def by_rows(layers: Layers, inputs: Any) -> None:
    which = tf.cast(inputs[:, 0], tf.int32)
    with tf.GradientTape() as tape:
        rows = tf.gather(layers[0], which)
        tape.watch(rows)
        loss = tf.reduce_sum(rows * inputs)
    slope = tape.gradient(loss, rows)
    layers[0].scatter_sub(tf.IndexedSlices(slope, which))


@pytest.mark.parametrize(
    "update",
    [
        by_arguments,
        by_arguments_of_arguments,
        by_parts_of_arguments,
        by_an_optimizer,
        by_what_it_activates,
        by_tf_gradients,
        by_rows,
    ],
)
def test_unaveraged_values_update_no_weight(update: Callable[..., None]) -> None:
    layers = chain()

    def step(inputs: Any) -> None:
        update(layers, inputs)

    with pytest.raises(ValueError, match=REFUSED):
        traced(step)


def test_sums_over_calls_update_no_weight() -> None:
    layers = chain()
    total = tf.Variable(tf.zeros([4, 4]), trainable=False)

    def step(inputs: Any) -> None:
        layers[0].assign_sub(total)
        total.assign_add(tf.function(taken)([layer.read_value() for layer in layers], inputs)[0])

    with pytest.raises(ValueError, match=REFUSED):
        traced(step)


# What is right.


def averaged_by_horovod(layers: Layers, inputs: Any) -> None:
    import horovod.tensorflow as hvd

    slopes = tf.function(taken)([layer.read_value() for layer in layers], inputs)
    descend(layers, [hvd.allreduce(slope) for slope in slopes])


def chained(layers: Layers, inputs: Any) -> None:
    """Differentiates by the activation first, and that by the weights."""
    with tf.GradientTape(persistent=True) as tape:
        activation = inputs @ layers[0]
        loss = tf.reduce_sum(tf.tanh(activation))
    slope = tape.gradient(loss, activation)
    descend(layers[:1], tape.gradient(activation, layers[:1], output_gradients=slope))


def adversary(layers: Layers, inputs: Any) -> None:
    near = inputs + tf.sign(tf.function(lambda tensor: taken_by_inputs(layers, tensor))(inputs))
    descend(layers, taken(layers, near))


def taken_by_inputs(layers: Layers, inputs: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        loss = loss_of(layers, inputs)
    return tape.gradient(loss, inputs)


def penalty(layers: Layers, inputs: Any) -> None:
    """On the slope at what other weights make, as a critic's is."""
    with tf.GradientTape() as outer:
        made = tf.tanh(inputs @ layers[3])
        slope = tf.function(lambda values: taken_by_inputs(layers[:3], values))(made)
        loss = loss_of(layers[:3], inputs) + tf.reduce_sum(slope**2)
    descend(layers[:3], outer.gradient(loss, layers[:3]))


def counted(layers: Layers, inputs: Any) -> None:
    """Writes the slope into a variable that it does not depend on."""
    descend(layers, taken(layers, inputs))
    steepness.assign(tf.norm(tf.function(lambda tensor: taken_by_inputs(layers, tensor))(inputs)))


steepness = tf.Variable(0.0)


@pytest.mark.parametrize("update", [averaged_by_horovod, chained, adversary, penalty, counted])
def test_averaged_and_other_gradients_stay_unchanged(
    update: Callable[..., None],
) -> None:
    layers = chain()

    def step(inputs: Any) -> None:
        update(layers, inputs)

    traced(step)


def samples_by_their_slope(samples: tf.Variable, inputs: Any) -> None:
    """Chains of samples, of which each rank has its own."""
    weight = tf.tanh(inputs[:, :1])
    start = samples.read_value() + weight

    @tf.function
    def slope(values: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(values)
            energy = tf.reduce_sum(values**4)
        return tape.gradient(energy, values)

    samples.assign(start - 0.1 * slope(start))


@pytest.mark.parametrize("how", ["frozen", "named"])
def test_a_ranks_own_samples_are_its_own(how: str) -> None:
    samples = tf.Variable(tf.ones([2, 4]), trainable=how != "frozen", name="samples")

    def step(inputs: Any) -> None:
        samples_by_their_slope(samples, inputs)

    if how == "named":
        with pytest.raises(ValueError, match="updates 'samples'"):
            traced(step)
    traced(step, is_rank_local=lambda tensor: tensor is samples)
