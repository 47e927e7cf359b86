"""Jacobians by variables: nothing inside is averaged, and nothing of them is trained with as is."""

from collections.abc import Callable
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.capture.traces import chain, traced
from tf_libra.capture.instrumented_function import InstrumentedFunction

REFUSED = r"step updates 'layer[01]' .*'layer0'.*hvd\.allreduce"


pytestmark = pytest.mark.usefixtures("horovod")


def per_example(
    layers: list[tf.Variable], inputs: tf.Tensor, tape: Any = None, **options: Any
) -> list[tf.Tensor]:
    with tf.GradientTape() as tape:
        losses = tf.reduce_sum(tf.tanh(tf.tanh(inputs @ layers[0]) @ layers[1]) ** 2, axis=1)
    return tape.jacobian(losses, layers[:2], **options)


def clipped(jacobians: list[tf.Tensor]) -> list[tf.Tensor]:
    """Each example's gradient, cut to the same norm; their mean."""
    norms = tf.sqrt(tf.add_n([tf.reduce_sum(jacobian**2, axis=[1, 2]) for jacobian in jacobians]))
    factors = tf.minimum(1.0, 0.5 / norms)[:, tf.newaxis, tf.newaxis]
    return [tf.reduce_mean(jacobian * factors, axis=0) for jacobian in jacobians]


@pytest.mark.parametrize("pfor", [True, False])
def test_nothing_inside_is_averaged(pfor: bool) -> None:
    layers = chain()

    def step(inputs: tf.Tensor) -> Any:
        return per_example(layers, inputs, experimental_use_pfor=pfor)

    trace, found = traced(step)
    assert found == []
    assert trace.reduced == ()
    assert trace.jacobians == ("layer0", "layer1")


def test_batch_jacobians_are_local_too() -> None:
    rows = tf.Variable(tf.ones([2, 4]), name="rows")

    def step(inputs: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            result = tf.tanh(rows * inputs)
        return tape.batch_jacobian(result, source=rows)

    trace, found = traced(step)
    assert found == []
    assert trace.jacobians == ("rows",)


def test_gradients_per_example_that_are_averaged_in_one_vector_are_left_to_horovod() -> None:
    layers = chain()

    def step(inputs: tf.Tensor) -> None:
        vector = tf.concat(
            [tf.reshape(gradient, [-1]) for gradient in clipped(per_example(layers, inputs))], 0
        )
        for layer, change in zip(layers, tf.split(hvd.allreduce(vector), 2), strict=False):
            layer.assign_sub(tf.reshape(change, layer.shape))

    trace, found = traced(step)
    assert found == []
    assert trace.left == {"layer0": "in another shape", "layer1": "in another shape"}
    assert trace.gradients_per_example == ("layer0", "layer1")
    assert trace.jacobians == ()


def test_jacobians_by_inputs_are_no_concern() -> None:
    layers = chain()

    def step(inputs: tf.Tensor) -> Any:
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner.watch(inputs)
                result = tf.tanh(inputs @ layers[0])
            loss = tf.reduce_sum(inner.batch_jacobian(result, inputs) ** 2)
        gradient = outer.gradient(loss, layers[0])
        layers[0].assign_sub(gradient)
        return loss

    trace, found = traced(step)
    assert found == ["layer0"]
    assert trace.jacobians == ()


# What updates a variable.


def assigned(layers: list[tf.Variable], gradients: list[tf.Tensor]) -> None:
    for layer, gradient in zip(layers, gradients, strict=False):
        layer.assign_sub(0.1 * gradient)


def by_optimizer(name: str) -> Callable[..., None]:
    made: list[Any] = []

    def apply(layers: list[tf.Variable], gradients: list[tf.Tensor]) -> None:
        made[:] = made or [keras.optimizers.get(name)]
        made[0].apply_gradients(zip(gradients, layers, strict=False))

    return apply


def in_a_function(layers: list[tf.Variable], gradients: list[tf.Tensor]) -> None:
    tf.function(lambda *given: assigned(layers, list(given)))(*gradients)


def in_a_branch(layers: list[tf.Variable], gradients: list[tf.Tensor]) -> None:
    if tf.reduce_sum(layers[2]) > 0:
        assigned(layers, gradients)


def decided_by_it(layers: list[tf.Variable], gradients: list[tf.Tensor]) -> None:
    if tf.reduce_sum(gradients[0]) > 0:
        layers[0].assign(tf.zeros([4, 4]))


def in_a_slice(layers: list[tf.Variable], gradients: list[tf.Tensor]) -> None:
    layers[0][1].assign(layers[0][1] - gradients[0][1])


def in_a_loop(layers: list[tf.Variable], gradients: list[tf.Tensor]) -> None:
    rate = tf.constant(0.0)
    for _ in tf.range(3):
        layers[0].assign_sub(tf.ones([4, 4]) * rate)
        rate += tf.reduce_mean(gradients[0])


def accumulator() -> Callable[..., None]:
    """Reads a value that a later line wrote in the call before."""
    total = tf.Variable(tf.zeros([4, 4]), trainable=False)

    def accumulate(layers: list[tf.Variable], gradients: list[tf.Tensor]) -> None:
        layers[0].assign_sub(total)
        total.assign_add(gradients[0])

    return accumulate


@pytest.mark.parametrize(
    "update",
    [
        assigned,
        by_optimizer("sgd"),
        by_optimizer("adam"),
        in_a_function,
        in_a_branch,
        decided_by_it,
        in_a_slice,
        in_a_loop,
        accumulator(),
    ],
)
def test_an_update_with_what_is_not_averaged_is_rejected(update: Callable[..., None]) -> None:
    layers = chain()

    def step(inputs: tf.Tensor) -> None:
        update(layers, clipped(per_example(layers, inputs)))

    with pytest.raises(ValueError, match=REFUSED):
        traced(tf.function(step))


def test_an_update_is_found_outside_of_the_function_that_asks() -> None:
    layers = chain()
    asking = tf.function(lambda inputs: (tf.reduce_sum(inputs), per_example(layers, inputs)))

    def step(inputs: tf.Tensor) -> Any:
        total, jacobians = asking(inputs)
        layers[2].assign_add(tf.ones([4, 4]) * total)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layers[2])
        layers[2].assign_sub(tape.gradient(loss, layers[2]))
        return [tf.norm(jacobian) for jacobian in jacobians]

    trace, found = traced(step)
    assert found == ["layer2"]  # which is not updated with what the other output is
    assert trace.jacobians == ("layer0", "layer1")

    def wrong(inputs: tf.Tensor) -> None:
        assigned(layers, clipped(asking(inputs)[1]))

    with pytest.raises(ValueError, match=r"wrong updates .* of 'layer0'"):
        traced(wrong)


def test_averages_of_the_script_are_planned() -> None:
    layers = chain()

    def step(inputs: tf.Tensor) -> None:
        assigned(
            layers, [hvd.allreduce(gradient) for gradient in clipped(per_example(layers, inputs))]
        )

    trace, found = traced(step)
    assert sorted(found) == ["layer0", "layer1"]
    assert trace.jacobians == ()
    assert trace.left == {}


def test_watching_jacobians_does_not_change_how_gradients_are_averaged() -> None:
    layers = chain()

    def step(inputs: tf.Tensor) -> Any:
        jacobians = per_example(layers, inputs)
        shown = hvd.allreduce(tf.reduce_mean(jacobians[0], axis=0))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.tanh(inputs @ layers[0]))
        layers[0].assign_sub(tape.gradient(loss, layers[0]))
        return tf.norm(shown)

    trace, found = traced(step)
    assert trace.jacobians == ()
    assert sorted(found) == ["layer0", "layer0#1"]


def test_values_are_those_without_us() -> None:
    layers = chain()
    inputs = tf.constant(np.random.default_rng(1).normal(size=[2, 4]), tf.float32)
    returned: list[Any] = []

    def step(inputs: tf.Tensor) -> Any:
        return per_example(layers, inputs)

    from tf_libra.capture.instrumented_function import InstrumentedFunction

    returned = InstrumentedFunction(step, lambda _: None)(inputs)
    for ours, plainly in zip(returned, tf.function(step)(inputs), strict=True):
        np.testing.assert_array_equal(ours, plainly)


pytestmark = pytest.mark.usefixtures("horovod")


def clipped_in_map(
    layers: list[tf.Variable], inputs: tf.Tensor, in_a_function: bool = False
) -> Any:
    """Each example's loss and gradients, these cut to the same norm; and once more as rows."""

    def of(example: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.tanh(tf.tanh(example[None] @ layers[0]) @ layers[1]) ** 2)
        return loss, tf.clip_by_global_norm(tape.gradient(loss, layers[:2]), 0.5)[0]

    return tf.vectorized_map(tf.function(of) if in_a_function else of, inputs)


@pytest.mark.parametrize("in_a_function", [False, True])
def test_vectorized_map_nothing_inside_is_averaged(in_a_function: bool) -> None:
    layers = chain()

    def step(inputs: tf.Tensor) -> Any:
        return clipped_in_map(layers, inputs, in_a_function)[1]

    trace, found = traced(step)
    assert found == []
    assert trace.reduced == ()
    # The source of a value made inside a function is unknown.
    assert trace.jacobians == (("layer0",) if in_a_function else ("layer0", "layer1"))


def test_loops_without_gradients_stay_unchanged() -> None:
    layers = chain()

    def step(inputs: tf.Tensor) -> Any:
        losses, _ = clipped_in_map(layers, inputs)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(
                tf.vectorized_map(lambda example: example[None] @ layers[0], inputs)
            )
        layers[0].assign_sub(tape.gradient(loss, layers[0]))
        return losses

    trace, found = traced(step)
    assert found == ["layer0"]
    assert trace.jacobians == ()


def test_vectorized_map_an_update_with_what_is_not_averaged_is_rejected() -> None:
    layers = chain()

    def step(inputs: tf.Tensor) -> None:
        for layer, rows in zip(layers, clipped_in_map(layers, inputs)[1], strict=False):
            layer.assign_sub(tf.reduce_mean(rows, axis=0))

    message = r"step updates 'layer\d' .*'layer\d' .*tf\.vectorized_map"
    with pytest.raises(ValueError, match=message):
        traced(step)


@pytest.mark.parametrize("in_a_function", [False, True])
def test_averages_of_the_script_are_all_reduced_once(in_a_function: bool) -> None:
    layers = chain()

    def step(inputs: tf.Tensor) -> None:
        rows = clipped_in_map(layers, inputs, in_a_function)[1]
        for layer, row in zip(layers, rows, strict=False):
            layer.assign_sub(hvd.allreduce(tf.reduce_mean(row, axis=0)))

    trace, found = traced(step)
    assert len(found) == 2
    assert trace.jacobians == ()
    assert trace.left == {}


def test_tables_and_jacobians_are_gradients_of_an_example_too() -> None:
    layers = chain()

    def of(example: tf.Tensor) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            row = tf.gather(layers[0], [1]) * example
            loss = tf.reduce_sum(row**2)
        return tape.gradient(loss, layers[0]), tape.jacobian(row, layers[0])

    def step(inputs: tf.Tensor) -> Any:
        return tf.vectorized_map(of, inputs)

    trace, found = traced(step)
    assert found == []
    assert trace.jacobians == ("layer0",)


def test_vectorized_map_values_are_those_without_us() -> None:
    layers = chain()
    inputs = tf.constant(np.random.default_rng(1).normal(size=[3, 4]), tf.float32)

    def step(inputs: tf.Tensor) -> Any:
        return clipped_in_map(layers, inputs)

    ours = tf.nest.flatten(InstrumentedFunction(step, lambda _: None)(inputs))
    for result, plainly in zip(ours, tf.nest.flatten(tf.function(step)(inputs)), strict=True):
        np.testing.assert_array_equal(result, plainly)
