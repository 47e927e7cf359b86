"""Element-wise updates against brute force: one element changes, and all are compared."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_libra.capture.dataflow import traced_graph
from tf_libra.capture.elementwise_updates import (
    EXACT_SUMS,
    SUMS,
    WeightUpdate,
    find_weight_updates,
)
from tf_libra.internal import native

SHAPES = {"kernel": (3, 4), "bias": (4,)}
NUM_STEPS = 3
# Takes the gradients, by name, and updates the variables that it has been made of.
Update = Callable[[dict[str, tf.Tensor]], Any]


def all_reduced(name: str, gradient: tf.Tensor) -> tf.Tensor:
    (result,) = native.load().ops.libra_all_reduce(
        tensors=[gradient], ends=[], tensor_names=[name], function="f"
    )
    return result


def find(
    update: Update, variables: Sequence[tf.Variable], sums: Collection[str] = frozenset()
) -> dict[str, WeightUpdate]:
    """Returns the updates by gradient, with indices of `variables`."""

    def step(gradients: dict[str, tf.Tensor]) -> Any:
        return update({name: all_reduced(name, gradient) for name, gradient in gradients.items()})

    specs = {name: tf.TensorSpec(shape) for name, shape in SHAPES.items()}
    graph = tf.function(step).get_concrete_function(specs).graph
    index = {id(variable.handle): i for i, variable in enumerate(variables)}
    position = {
        inner.op.name: index[id(outer)] for outer, inner in graph.captures if id(outer) in index
    }
    names = [tensor.op.name for tensor in graph.inputs]
    results = [(output.op.name, output.value_index) for output in graph.outputs]
    found = find_weight_updates(traced_graph.read(graph, with_sizes=True), results, sums)
    return {
        analysis.gradient: WeightUpdate(
            analysis.gradient,
            tuple(sorted(position[names[i]] for i in analysis.variables)),
            analysis.mixed_by,
            analysis.readers,
            {position[names[i]]: readers for i, readers in analysis.variable_readers.items()},
            analysis.sums,
            {position[names[i]]: sums for i, sums in analysis.variable_sums.items()},
        )
        for analysis in found
    }


def changes(
    update: Update, variables: Sequence[tf.Variable], gradient: str, element: int
) -> set[tuple[int, int]]:
    """Returns the elements of variables that depend on one element of a gradient.

    The gradient differs in the first step only, and the variables are those of some steps later.
    """
    random = np.random.default_rng(7)
    steps = [
        {name: random.normal(size=shape).astype("float32") for name, shape in SHAPES.items()}
        for _ in range(NUM_STEPS)
    ]
    start = [variable.numpy() for variable in variables]
    run = tf.function(update)

    def train(factor: float) -> list[np.ndarray]:
        for variable, value in zip(variables, start, strict=True):
            variable.assign(value)
        for i, gradients in enumerate(steps):
            given = {name: value.copy() for name, value in gradients.items()}
            if i == 0:
                given[gradient].flat[element] *= factor
            run({name: tf.constant(value) for name, value in given.items()})
        return [variable.numpy() for variable in variables]

    pairs = list(enumerate(zip(train(1.0), train(-3.5), strict=True)))
    for variable, value in zip(variables, start, strict=True):
        variable.assign(value)
    return {
        (i, int(j))
        for i, (before, other) in pairs
        for j in np.flatnonzero(before.ravel() != other.ravel())
    }


def check(update: Update, variables: Sequence[tf.Variable]) -> dict[str, WeightUpdate]:
    """Compares analysis and brute force, in both directions; returns the analysis."""
    found = find(update, variables)
    assert list(found) == sorted(SHAPES)
    for name, analysis in found.items():
        changed = changes(update, variables, name, 2)
        assert changed, name
        is_elementwise = {i for i, _ in changed} <= set(analysis.variables) and {
            j for _, j in changed
        } == {2}
        assert analysis.is_elementwise == is_elementwise, (name, analysis, changed)
    return found


def weights() -> dict[str, keras.Variable]:
    random = np.random.default_rng(3)
    return {
        name: keras.Variable(random.normal(size=shape).astype("float32"), name=name)
        for name, shape in SHAPES.items()
    }


def with_optimizer(optimizer: Any) -> tuple[Update, list[tf.Variable]]:
    trained = weights()
    optimizer.build(list(trained.values()))

    def update(gradients: dict[str, tf.Tensor]) -> None:
        optimizer.apply([gradients[name] for name in trained], list(trained.values()))

    known = [*trained.values(), *optimizer.variables]
    return update, [variable.value for variable in known]


K = keras.optimizers


@pytest.mark.parametrize(
    ("optimizer", "num_variables"),
    [
        (lambda: K.SGD(0.1), 1),
        (lambda: K.SGD(0.1, momentum=0.9), 2),
        (lambda: K.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.1), 2),
        (lambda: K.Adam(0.1, amsgrad=True), 4),
        (lambda: K.AdamW(0.1, clipvalue=0.5), 3),
        (lambda: K.Adamax(0.1, use_ema=True, ema_overwrite_frequency=2), 4),
        (lambda: K.Nadam(0.1, gradient_accumulation_steps=2), 4),
        (lambda: K.RMSprop(0.1, momentum=0.5, centered=True), 4),
        (lambda: K.Adagrad(0.1), 2),
        (lambda: K.Adadelta(0.1, loss_scale_factor=8.0), 3),
        (lambda: K.Ftrl(0.1, l1_regularization_strength=0.01), 3),
        (lambda: K.Lion(0.1, beta_1=0.1), 2),
    ],
)
def test_elementwise_optimizers_of_keras(optimizer: Callable[[], Any], num_variables: int) -> None:
    found = check(*with_optimizer(optimizer()))
    assert all(analysis.is_elementwise for analysis in found.values())
    assert {len(analysis.variables) for analysis in found.values()} == {num_variables}


@pytest.mark.parametrize(
    ("optimizer", "op"),
    [
        (lambda: K.Adam(0.1, clipnorm=0.1), "Sum"),
        (lambda: K.SGD(0.1, global_clipnorm=0.1), "Sum"),
        (lambda: K.Lamb(0.1), "Sum"),
        (lambda: K.Adafactor(0.1), "Mean"),
    ],
)
def test_optimizers_of_keras_that_mix_elements(optimizer: Callable[[], Any], op: str) -> None:
    found = check(*with_optimizer(optimizer()))
    for analysis in found.values():
        assert analysis.mixed_by is not None and analysis.mixed_by.endswith(f"({op})")
    of_sums = find(*with_optimizer(optimizer()), sums=SUMS)
    assert {analysis.is_elementwise for analysis in of_sums.values()} == {op == "Sum"}


class HandWritten:
    """Updates of a kernel and a bias with a slot each, as a script may write them."""

    def __init__(self, change: Callable[[Any, Any, Any], Any]) -> None:
        random = np.random.default_rng(5)
        self.weights = {
            name: tf.Variable(random.normal(size=shape).astype("float32"), name=name)
            for name, shape in SHAPES.items()
        }
        self.slots = {name: tf.Variable(tf.ones(shape)) for name, shape in SHAPES.items()}
        self.count = tf.Variable(1.0)
        self.variables = [*self.weights.values(), *self.slots.values(), self.count]
        self._change = change

    def update(self, gradients: dict[str, tf.Tensor]) -> None:
        self.count.assign_add(1.0)
        for name, gradient in gradients.items():
            weight, slot = self.weights[name], self.slots[name]
            slot.assign(0.5 * slot + gradient)
            weight.assign_sub(self._change(gradient, weight, slot) / self.count)


def called(gradient: Any, weight: Any, slot: Any) -> Any:
    return tf.function(lambda g: tf.sign(g) * tf.sqrt(tf.abs(slot)))(gradient)


def conditional(gradient: Any, weight: Any, slot: Any) -> Any:
    return tf.cond(tf.random.uniform([], seed=1) < 2.0, lambda: gradient, lambda: slot)


@pytest.mark.parametrize(
    "change",
    [
        lambda g, w, s: g + 0.1 * w,
        lambda g, w, s: tf.clip_by_value(g, -0.5, 0.5) * tf.exp(-s),
        lambda g, w, s: tf.reshape(tf.reshape(g, [-1]) * tf.reshape(s, [-1]), w.shape),
        lambda g, w, s: tf.where(s > 0, g, tf.zeros_like(g)),
        called,
        conditional,
    ],
)
def test_elementwise_updates_written_by_hand(change: Callable[[Any, Any, Any], Any]) -> None:
    step = HandWritten(change)
    found = check(step.update, step.variables)
    assert found["kernel"].variables == (0, 2)
    assert found["bias"].variables == (1, 3)
    assert found["kernel"].is_elementwise and found["bias"].is_elementwise


@pytest.mark.parametrize(
    ("change", "op"),
    [
        (lambda g, w, s: g - tf.reduce_mean(g), "Mean"),
        (lambda g, w, s: g / tf.norm(w + s), "Sum"),
        (lambda g, w, s: tf.reverse(g, [0]), "ReverseV2"),
        (lambda g, w, s: tf.cumsum(s), "Cumsum"),
        (lambda g, w, s: tf.cond(tf.reshape(s, [-1])[0] > 1, lambda: g, lambda: w), "StridedSlice"),
    ],
)
def test_updates_written_by_hand_that_mix_elements(
    change: Callable[[Any, Any, Any], Any], op: str
) -> None:
    step = HandWritten(change)
    found = find(step.update, step.variables)
    for analysis in found.values():
        readers = [
            *analysis.readers,
            *(name for all_ in analysis.variable_readers.values() for name in all_),
        ]
        assert any(name.endswith(f"({op})") for name in readers)
        # The weight is an element-wise function of nothing, or of values that are mixed.
        assert analysis.mixed_by is not None or len(analysis.variables) == 1


@pytest.mark.parametrize(
    ("change", "is_elementwise", "is_exact"),
    [
        (lambda g, w, s: g / tf.norm(w + s), True, False),
        (lambda g, w, s: tf.clip_by_norm(g, 0.1), True, False),
        (lambda g, w, s: g * tf.nn.l2_loss(g) * tf.reduce_sum(g * s, keepdims=True), True, False),
        (lambda g, w, s: tf.where(tf.reduce_all(tf.math.is_finite(g)), g, 0 * g), True, True),
        (lambda g, w, s: tf.where(tf.reduce_any(tf.math.is_nan(g)), 0 * g, g), True, True),
        (lambda g, w, s: g * tf.reduce_sum(tf.reverse(s, [0])), False, False),
        (lambda g, w, s: g * tf.reduce_sum(g, axis=-1, keepdims=True), False, False),
        # One element, but of a vector, as there are other axes of one element.
        (lambda g, w, s: g * tf.reduce_sum(tf.reshape(g, [-1, 1]), axis=0), False, False),
        (lambda g, w, s: g * tf.reduce_sum(g[:, None], axis=0, keepdims=True)[0], False, False),
        (lambda g, w, s: g * tf.reduce_sum(tf.reshape(g, [-1, 1]), axis=[0, 1]), True, False),
    ],
)
def test_sums_of_all_elements_mix_nothing_if_ranks_add_them(
    change: Callable[[Any, Any, Any], Any], is_elementwise: bool, is_exact: bool
) -> None:
    step = HandWritten(change)
    for sums, expected in ((SUMS, is_elementwise), (EXACT_SUMS, is_exact)):
        kernel = find(step.update, step.variables, sums)["kernel"]
        readers = [
            *kernel.readers,
            *(name for all_ in kernel.variable_readers.values() for name in all_),
        ]
        assert (kernel.is_elementwise and not readers) == expected


def test_sums_are_named_by_gradients() -> None:
    def change(gradient: Any, weight: Any, slot: Any) -> Any:
        return gradient / tf.norm(slot + gradient) * tf.nn.l2_loss(gradient)

    step = HandWritten(change)
    kernel = find(step.update, step.variables, sums=SUMS)["kernel"]
    assert kernel.sums == ("L2Loss of kernel", "Sum of a variable and kernel")
    assert list(kernel.variable_sums.values()) == [("Sum of a variable and kernel",)]


def test_updates_of_which_nothing_is_elementwise_are_found() -> None:
    total = tf.Variable(0.0)
    found = find(lambda gradients: total.assign(tf.reduce_sum(gradients["kernel"])), [total])
    assert list(found) == ["kernel"]
    assert found["kernel"].variables == ()
    assert found["kernel"].mixed_by == "Sum (Sum)"


def test_readers_of_whole_gradients_are_named() -> None:
    step = HandWritten(lambda g, w, s: g)
    norm = tf.Variable(0.0)

    def update(gradients: dict[str, tf.Tensor]) -> tf.Tensor:
        step.update(gradients)
        norm.assign(tf.reduce_sum(step.slots["bias"]))
        return gradients["kernel"]

    found = find(update, [*step.variables, norm])
    assert all(analysis.is_elementwise for analysis in found.values())
    assert found["kernel"].readers == ("a result of the step",)
    assert found["bias"].readers == ()
    assert list(found["bias"].variable_readers) == [3]
    assert found["kernel"].variable_readers == {}


def test_dense_updates_of_tensorflow() -> None:
    weights = {name: tf.Variable(tf.ones(shape)) for name, shape in SHAPES.items()}
    slots = {name: tf.Variable(tf.ones(shape)) for name, shape in SHAPES.items()}

    def update(gradients: dict[str, tf.Tensor]) -> None:
        for name, gradient in gradients.items():
            tf.raw_ops.ResourceApplyKerasMomentum(
                var=weights[name].handle,
                accum=slots[name].handle,
                lr=0.1,
                grad=gradient,
                momentum=0.9,
            )

    found = check(update, [*weights.values(), *slots.values()])
    assert [analysis.variables for analysis in found.values()] == [(1, 3), (0, 2)]


ELEMENTWISE: tuple[Callable[[Any, Any], Any], ...] = (
    lambda a, b: a + b,
    lambda a, b: a * tf.tanh(b),
    lambda a, b: tf.where(a > b, a, 0.5 * b),
    lambda a, b: tf.reshape(tf.reshape(a, [-1]) - 2.0, a.shape),
    lambda a, b: tf.function(lambda x: tf.sign(x) * tf.abs(b))(a),
)
MIXING: tuple[Callable[[Any, Any], Any], ...] = (
    lambda a, b: a - tf.reduce_mean(b),
    lambda a, b: tf.reverse(a, [0]) + b,
    lambda a, b: a * tf.reshape(b, [-1])[0],
    lambda a, b: tf.cond(tf.reduce_max(b) > 1.0, lambda: a, lambda: 0.5 * a),
)
# Op, and which two of the values so far are its operands.
STEPS = st.lists(
    st.tuples(st.integers(0, len(ELEMENTWISE + MIXING) - 1), st.integers(0, 2), st.integers(0, 2)),
    max_size=3,
)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(STEPS)
def test_random_updates_are_elementwise_if_found_so(
    steps: list[tuple[int, int, int]],
) -> None:
    def change(gradient: Any, weight: Any, slot: Any) -> Any:
        values = [gradient, tf.convert_to_tensor(weight), tf.convert_to_tensor(slot)]
        for op, first, second in steps:
            # Replaces the first operand, so that later ops read it.
            values[first] = (ELEMENTWISE + MIXING)[op](values[first], values[second])
        return tf.tanh(values[0] + values[1])

    step = HandWritten(change)
    found = find(step.update, step.variables)
    assert list(found) == sorted(SHAPES)
    for name, update in found.items():
        changed = changes(step.update, step.variables, name, 2)
        if all(op < len(ELEMENTWISE) for op, _, _ in steps):
            assert update.is_elementwise
        if update.is_elementwise:
            assert {j for i, j in changed if i in update.variables} <= {2}
            if not update.readers and not update.variable_readers:
                assert {i for i, _ in changed} <= set(update.variables)
