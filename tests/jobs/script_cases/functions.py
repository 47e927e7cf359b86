"""Gradients in nested functions, branches, loops and concrete functions."""

from collections.abc import Callable
from typing import Any

import models
import tensorflow as tf
from harness import RANK

from script_cases.common import (
    STEPS,
    Share,
    Wrap,
    batch,
    cases,
    compared,
    descend,
    hand_written,
    optimized,
    part,
    train_steps,
    variable,
)


@cases
def function_that_was_traced_before() -> Any:
    """The function was called before, and one rank alone calls it again elsewhere."""

    def train(wrap: Wrap, share: Share) -> Any:
        model = hand_written()

        @tf.function
        def gradients_of(inputs: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = model.loss(inputs, labels)
            return tape.gradient(loss, model.variables)

        mine = share(batch(0))
        before = gradients_of(*mine)

        def step(inputs: Any, labels: Any) -> Any:
            model.update(gradients_of(inputs, labels))

        stepping = wrap(step)
        weights = [v.numpy() for v in model.variables]
        train_steps(stepping, share)
        trained = [v.numpy() for v in model.variables]
        for target, value in zip(model.variables, weights, strict=True):
            target.assign(value)
        same = True
        if RANK == 0:
            after = gradients_of(*mine)
            same = all(bool(tf.reduce_all(a == b)) for a, b in zip(after, before, strict=True))
        return trained, same

    return compared(train)


@cases
def gradients_in_a_branch() -> Any:
    def train(wrap: Wrap, share: Share) -> Any:
        model = hand_written("sgd")

        def step(inputs: Any, labels: Any, twice: Any) -> Any:
            if twice:
                with tf.GradientTape() as tape:
                    loss = 2.0 * model.loss(inputs, labels)
                model.update(tape.gradient(loss, model.variables))
            else:
                with tf.GradientTape() as tape:
                    loss = model.loss(inputs, labels)
                model.update(tape.gradient(loss, model.variables))
            return loss

        stepping = wrap(step)
        for number in range(2 * STEPS):
            stepping(*share(batch(number)), tf.constant(number % 3 == 0))
        return model.variables, None

    return compared(train)


@cases
def several_steps_in_a_loop_of_the_graph() -> Any:
    def train(wrap: Wrap, share: Share) -> Any:
        model = hand_written()

        def steps(inputs: Any, labels: Any) -> Any:
            for _ in tf.range(3):
                with tf.GradientTape() as tape:
                    loss = model.loss(inputs, labels)
                model.update(tape.gradient(loss, model.variables))

        stepping = wrap(steps)
        train_steps(stepping, share)
        return model.variables, None

    return compared(train)


@cases
def tf_gradients() -> Any:
    model = hand_written("sgd")

    def step(inputs: Any, labels: Any) -> Any:
        model.update(tf.gradients(model.loss(inputs, labels), model.variables))

    optimized()(step)(*part(batch(0)))


def concrete_function_made_before(use: Callable[[Any, Any], Any], model: Any, *inputs: Any) -> Any:
    """A step calls a function of `model` and its gradients, `use`, that was made before."""

    @tf.function
    def inner(*inputs: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = model.loss(*inputs)
        return use(tape.gradient(loss, model.variables), loss)

    before = inner.get_concrete_function(*inputs)
    optimized()(lambda *inputs: before(*inputs))(*inputs)


@cases
def concrete_function_that_returns_gradients() -> Any:
    concrete_function_made_before(lambda g, _: g, hand_written(), *part(batch(0)))


@cases
def concrete_function_that_returns_rows() -> Any:
    class Table:
        def __init__(self) -> None:
            self.variables = [variable([40, 6], "table")]

        def loss(self, words: Any) -> Any:
            return tf.reduce_sum(tf.gather(self.variables[0], words) ** 2)

    concrete_function_made_before(lambda g, _: g, Table(), tf.constant([3, 1, 3]))


@cases
def concrete_function_that_updates() -> Any:
    model = hand_written("sgd")

    def update(gradients: Any, loss: Any) -> Any:
        tf.function(model.update)(gradients)
        return loss

    concrete_function_made_before(update, model, *part(batch(0)))


@cases
def concrete_function_that_accumulates() -> Any:
    model = hand_written()
    total = tf.Variable(tf.zeros_like(model.variables[0]), trainable=False, name="sum")

    def add(gradients: Any, loss: Any) -> Any:
        if loss > 0:
            total.assign_add(gradients[0])
        return loss

    concrete_function_made_before(add, model, *part(batch(0)))


@cases
def concrete_function_in_the_forward_computation() -> Any:
    """The function takes a gradient of its input, counts, and was differentiated before."""

    def train(wrap: Wrap, share: Share) -> Any:
        first = variable([models.FEATURES, 5], "first", 1)
        last = variable([5, models.CLASSES], "last", 2)
        scale = variable([], "scale", 3)
        calls = tf.Variable(0, trainable=False)
        chosen = [first, last, scale]

        @tf.function
        def forces(inputs: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                energy = tf.reduce_sum(tf.tanh(inputs @ first) ** 2)
            calls.assign_add(1)
            moved = (inputs + tape.gradient(energy, inputs)) @ first * scale
            return moved, tf.reduce_sum(moved)

        inputs, _ = share(batch(0))
        moved = forces.get_concrete_function(inputs)
        with tf.GradientTape() as tape:
            _, loss = moved(inputs)
        tape.gradient(loss, first)

        def step(inputs: Any, _: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((moved(inputs)[0] @ last) ** 2)
            descend(chosen, tape.gradient(loss, chosen))

        stepping = wrap(step)
        train_steps(stepping, share)
        return chosen, None

    return compared(train)
