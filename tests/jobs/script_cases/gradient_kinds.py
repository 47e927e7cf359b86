"""Sparse, empty, missing, recomputed and per-example gradients."""

from typing import Any

import horovod.tensorflow as hvd
import models
import numpy as np
import tensorflow as tf
from harness import RANK

from script_cases.common import (
    BRIEFLY,
    DTYPE,
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
    whole,
)


def embedding(head: bool, **options: Any) -> Any:
    def train(wrap: Wrap, share: Share) -> Any:
        table, final = variable([40, 6], "table", 1), variable([6, 3], "final", 2)
        chosen = [table, final] if head else [table]
        optimizer = tf.keras.optimizers.Adam(0.01)
        optimizer.build(chosen)

        def step(words: Any, divisor: Any) -> Any:
            with tf.GradientTape() as tape:
                hidden = tf.tanh(tf.gather(table, words))
                loss = tf.reduce_sum((hidden @ final) ** 2) / tf.cast(divisor, DTYPE)
            gradients: Any = tape.gradient(loss, chosen)
            kinds.append(isinstance(gradients[0], tf.IndexedSlices))
            if "sparse_as_dense" in options:  # Adam treats the two differently
                gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
            optimizer.apply_gradients(zip(gradients, chosen, strict=True))
            return loss

        kinds: list[bool] = []
        stepping = wrap(step)
        for number in range(STEPS):
            words = tf.constant(np.random.default_rng(number).integers(0, 40, size=16))
            # Ranks have different numbers of words, once none.
            cut = (5, 11, 0)[number % 3]
            mine = words if share is whole else (words[:cut] if RANK == 0 else words[cut:])
            stepping(mine, tf.constant(16 if share is whole else 8))
        reported = {"sparse": kinds[0], "plan": None}
        if share is part and stepping.plan is not None:
            reported["plan"] = list(stepping.plan.tensor_names)
        return [table, final], reported

    return compared(train, **BRIEFLY, **options)


@cases
def embedding_gathered() -> Any:
    return embedding(True)


@cases
def embedding_made_dense() -> Any:
    return embedding(True, sparse_as_dense=True)


@cases
def embedding_added() -> Any:
    return embedding(True, sparse_as_dense="rows")


@cases
def embedding_alone() -> Any:
    return embedding(False)


@cases
def tensors_without_elements() -> Any:
    def train(wrap: Wrap, share: Share) -> Any:
        model = hand_written("sgd")
        empty = variable([0, models.FEATURES], "empty")

        def step(inputs: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = model.loss(inputs, labels) + tf.reduce_sum(inputs @ tf.transpose(empty))
            *gradients, none = tape.gradient(loss, [*model.variables, empty])
            model.update(gradients)
            empty.assign_sub(none)

        stepping = wrap(step)
        train_steps(stepping, share)
        return [*model.variables, empty], None

    return compared(train)


@cases
def gradients_that_are_none() -> Any:
    """An unused head has no gradient, next to an embedding; with a check for non-finite values."""

    def train(wrap: Wrap, share: Share) -> Any:
        model = hand_written()
        table, unused = variable([8, models.FEATURES], "table"), variable([3], "unused")
        chosen = [unused, *model.variables, table]
        optimizer = tf.keras.optimizers.Adam(0.01)
        optimizer.build(chosen)

        def step(inputs: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = model.loss(inputs + tf.gather(table, labels), labels)
            gradients = tape.gradient(loss, chosen)
            assert gradients[0] is None
            gradients[-1] = tf.convert_to_tensor(gradients[-1])
            optimizer.apply_gradients(zip(gradients, chosen, strict=True))

        train_steps(wrap(step), share)
        return [*model.variables, table, unused], None

    return compared(train, **BRIEFLY, check_numerics="raise")


@cases
def recomputed_in_backward() -> Any:
    def train(wrap: Wrap, share: Share) -> Any:
        model = hand_written("sgd")
        w0, b0, w1, b1, w2, b2 = model.variables
        hidden = tf.recompute_grad(lambda x: tf.tanh(tf.tanh(x @ w0 + b0) @ w1 + b1))

        def step(inputs: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = models.cross_entropy(labels, hidden(inputs) @ w2 + b2)
            model.update(tape.gradient(loss, model.variables))

        stepping = wrap(step)
        train_steps(stepping, share)
        planned = stepping.plan.tensor_names if share is part and stepping.plan else ()
        return model.variables, sorted(planned)

    return compared(train)


@cases
def gradients_per_example() -> Any:
    """Clipped one by one, and averaged by the script."""

    def train(wrap: Wrap, share: Share) -> Any:
        model = hand_written("sgd")

        def step(inputs: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                hidden = tf.tanh(tf.tanh(inputs @ w0 + b0) @ w1 + b1)
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, hidden @ w2 + b2)
            rows = tape.jacobian(losses, model.variables)
            squares = [tf.reduce_sum(tf.reshape(row, [len(row), -1]) ** 2, axis=1) for row in rows]
            factors = tf.minimum(tf.cast(1.0, DTYPE), 0.5 / tf.sqrt(tf.add_n(squares)))
            gradients = [tf.tensordot(factors, row, 1) / len(row) for row in rows]
            if share is part:
                gradients = [hvd.allreduce(gradient) for gradient in gradients]
            model.update(gradients)
            return [tf.reduce_mean(row, axis=0) for row in rows]

        w0, b0, w1, b1, w2, b2 = model.variables
        stepping = wrap(step)
        train_steps(stepping, share)
        planned = stepping.plan.tensor_names if share is part and stepping.plan else ()
        return model.variables, sorted(planned)

    return compared(train)


@cases
def gradients_per_example_that_nobody_averages() -> Any:
    model = hand_written("sgd")

    def step(inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            losses = tf.reduce_sum((inputs @ model.variables[0]) ** 2, axis=1)
        rows = tape.jacobian(losses, model.variables[0])
        descend(model.variables[:1], [tf.reduce_mean(rows, axis=0)])

    optimized()(step)(*part(batch(0)))


@cases
def gradients_per_example_alone() -> Any:
    """Returned, and averaged outside of the step: no all-reduce is left for a plan."""
    model = hand_written("sgd")

    def step(inputs: Any, labels: Any) -> Any:
        def of_one(example: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = model.loss(example[0][tf.newaxis], example[1][tf.newaxis])
            return tape.gradient(loss, model.variables)

        return tf.vectorized_map(of_one, (inputs, labels))

    optimized()(step)(*part(batch(0)))
