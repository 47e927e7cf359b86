"""Patterns of training scripts, on two workers, and alone on the joint batch: `scripts.py PLAN`."""

import concurrent.futures
import functools
import hashlib
import sys
from collections.abc import Callable
from typing import Any

import horovod.tensorflow as hvd
import models
import numpy as np
import tensorflow as tf
from harness import FOLDER, RANK, SIZE, Cases, restart_engine

import tf_libra

cases = Cases()
PLAN_FILE = sys.argv[1]
LAST = SIZE - 1
DTYPE = "float64"
# Measuring that ends early still leads through every phase that other ranks have to follow.
BRIEFLY: dict[str, Any] = {"strategy": "mg-wfbp", "max_tuning_steps": 3}
STEPS = 6

Wrap = Callable[[Callable[..., Any]], Any]
Share = Callable[[Any], Any]


def batch(number: int, shard: int = models.SHARD) -> Any:
    return models.batch(number, SIZE, DTYPE, shard)


def part(joint: Any) -> Any:
    """This rank's share of every array of a joint batch."""

    def cut(array: Any) -> Any:
        size = len(array) // SIZE
        return array[RANK * size : (RANK + 1) * size]

    return tf.nest.map_structure(cut, joint)


def whole(joint: Any) -> Any:
    return joint


def eagerly(function: Callable[..., Any]) -> Any:
    """Wraps the step of one process, which needs no graph: tracing is the slowest part here."""
    return function


def optimized(**options: Any) -> Wrap:
    def wrap(function: Callable[..., Any]) -> Any:
        return tf_libra.optimize(**(options or BRIEFLY))(tf.function(function))

    return wrap


def train_steps(step: Callable[..., Any], share: Share) -> None:
    for number in range(STEPS):
        step(*share(batch(number)))


def values(variables: Any) -> dict[str, Any]:
    return {str(index): tf.convert_to_tensor(one).numpy() for index, one in enumerate(variables)}


def compared(train: Callable[[Wrap, Share], tuple[Any, Any]], **options: Any) -> Any:
    """Runs `train` alone on joint batches, and here on shards; it returns variables and a value."""
    alone, _ = train(eagerly, whole)
    ours, told = train(optimized(**options), part)
    cases.save(
        **{f"alone/{k}": v for k, v in values(alone).items()},
        **{f"ours/{k}": v for k, v in values(ours).items()},
    )
    return told


def hand_written(optimizer: str = "adam") -> models.HandWritten:
    return models.HandWritten(DTYPE, optimizer)


def variable(shape: Any, name: str, seed: int = 0, **options: Any) -> tf.Variable:
    random = np.random.default_rng(seed)
    return tf.Variable(random.normal(size=shape).astype(DTYPE) / 4, name=name, **options)


def descend(variables: Any, gradients: Any, rate: float = 0.1) -> None:
    for one, gradient in zip(variables, gradients, strict=True):
        one.assign_sub(rate * tf.convert_to_tensor(gradient))


# Traces.


@cases
def short_last_batch() -> Any:
    def train(wrap: Wrap, share: Share) -> Any:
        model = hand_written()
        step = wrap(model.step)
        for number, shard in enumerate([4, 4, 3, 4, 4, 3, 1]):
            step(*share(batch(number, shard)))
        traces = (
            step._training._tracer.function.experimental_get_tracing_count() if share is part else 0
        )
        told = {"traces": traces, "plan": share is part and step.plan.fingerprint}
        return model.variables, told

    variables = hand_written().variables
    given = models.plan_of(variables, SIZE, [0, 2, 4, 6], [1, 2, 1])
    return {**compared(train, plan=given), "given": given.fingerprint}


@cases
def another_batch_size_on_each_rank() -> Any:
    """Each rank traces shapes of its own; what is averaged has the same ones everywhere."""
    model = hand_written("sgd")
    step = optimized()(model.step)
    for number in range(STEPS):
        inputs, labels = part(batch(number))
        rows = 2 if RANK == LAST and number % 2 else 4
        step(inputs[:rows], labels[:rows])
    cases.save(**values(model.variables))


class Switched(models.HandWritten):
    """Computes other gradients if the switch requests them."""

    def __init__(self) -> None:
        super().__init__(DTYPE, "sgd")
        self.extra = variable([models.FEATURES, models.CLASSES], "extra", seed=3)
        self.larger = variable([3 * models.FEATURES], "w0", seed=4)

    def step(self, inputs: Any, labels: Any, switch: str = "") -> Any:
        chosen = list(self.variables)
        with tf.GradientTape() as tape:
            loss = self.loss(inputs, labels)
            if switch == "extra":
                chosen.append(self.extra)
                loss += tf.reduce_sum((inputs @ self.extra) ** 2) / len(inputs)
            if switch == "larger":
                chosen[0] = self.larger
                loss += tf.reduce_sum(self.larger**2)
            if switch == "none":
                chosen.append(self.extra)
        gradients = tape.gradient(loss, chosen)
        there = [i for i, gradient in enumerate(gradients) if gradient is not None]
        descend([chosen[i] for i in there], [gradients[i] for i in there])
        return loss


@cases
def variables_created_late() -> Any:
    def train(wrap: Wrap, share: Share) -> Any:
        model = Switched()
        step = wrap(model.step)
        phases = []
        for number in range(2 * STEPS):
            switch = "extra" if number >= STEPS and number != STEPS + 2 else ""
            step(*share(batch(number)), switch)
            if share is part:
                phases.append([str(step.phase), len(step.plan.tensor_names) if step.plan else 0])
        return [*model.variables, model.extra], phases

    return compared(train)


def switched_on_one_rank(switch: str) -> Any:
    model = Switched()
    step = optimized()(model.step)
    for number in range(STEPS):
        step(*part(batch(number)), switch if RANK == LAST and number == STEPS - 1 else "")


@cases
def one_rank_alone_has_another_variable() -> Any:
    switched_on_one_rank("extra")


@cases
def one_rank_alone_has_another_size() -> Any:
    switched_on_one_rank("larger")


@cases
def one_rank_alone_has_no_gradient() -> Any:
    model = Switched()
    step = optimized()(model.step)
    train_steps(step, part)
    step(*part(batch(STEPS)), "none" if RANK == LAST else "extra")


@cases
def one_rank_alone_has_no_gradient_at_first() -> Any:
    model = Switched()
    optimized()(model.step)(*part(batch(0)), "none" if RANK == LAST else "extra")


# Several functions.


class Adversaries:
    """A generator and a discriminator, each with an optimizer."""

    def __init__(self) -> None:
        self.generator = [variable([3, models.FEATURES], "g", 1), variable([8, 8], "unused", 5)][:1]
        self.judge = [variable([models.FEATURES, 6], "d0", 2), variable([6, 1], "d1", 3)]
        self.generator_optimizer = tf.keras.optimizers.Adam(0.01)
        self.judge_optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)

    def judged(self, inputs: Any) -> Any:
        return tf.nn.tanh(inputs @ self.judge[0]) @ self.judge[1]

    def judge_step(self, real: Any, noise: Any) -> Any:
        with tf.GradientTape() as tape:
            fake = tf.nn.tanh(noise @ self.generator[0])
            loss = tf.reduce_mean(tf.nn.softplus(-self.judged(real)))
            loss += tf.reduce_mean(tf.nn.softplus(self.judged(fake)))
        self.judge_optimizer.apply_gradients(
            zip(tape.gradient(loss, self.judge), self.judge, strict=True)
        )
        return loss

    def generator_step(self, noise: Any) -> Any:
        with tf.GradientTape() as tape:
            fake = tf.nn.tanh(noise @ self.generator[0])
            loss = tf.reduce_mean(tf.nn.softplus(-self.judged(fake)))
        self.generator_optimizer.apply_gradients(
            zip(tape.gradient(loss, self.generator), self.generator, strict=True)
        )
        return loss

    def both(self, real: Any, noise: Any) -> Any:
        return self.judge_step(real, noise) + self.generator_step(noise)

    @property
    def variables(self) -> list[Any]:
        return [*self.generator, *self.judge]


def noise_of(number: int) -> Any:
    return tf.constant(np.random.default_rng(number).normal(size=(8, 3)))


@cases
def generator_and_discriminator() -> Any:
    def train(wrap: Wrap, share: Share) -> Any:
        model = Adversaries()
        judge, generator = wrap(model.judge_step), wrap(model.generator_step)
        for number in range(STEPS):
            real, noise = share((batch(number)[0], noise_of(number)))
            judge(real, noise)
            if number % 2:
                generator(noise)
        return model.variables, None

    return compared(train)


@cases
def several_optimizers_in_one_step() -> Any:
    def train(wrap: Wrap, share: Share) -> Any:
        model = Adversaries()
        step = wrap(model.both)
        for number in range(STEPS):
            step(*share((batch(number)[0], noise_of(number))))
        return model.variables, None

    return compared(train)


def crossed(names: tuple[str, str], rounds: int) -> Any:
    """Two functions under one plan, which one rank calls in another order after some rounds."""
    steps = []
    for name in names:
        model = models.HandWritten("float32", "sgd")

        def step(inputs: Any, labels: Any, model: Any = model) -> Any:
            return model.step(inputs, labels)

        step.__qualname__ = name
        steps.append(optimized(plan=PLAN_FILE)(step))
    shard = models.part(models.batch(0, SIZE, "float32"), RANK, SIZE)
    for _ in range(rounds):
        for step in steps:
            step(*shard)
    for step in steps[::-1] if RANK == LAST else steps:
        step(*shard)


@cases
def two_functions_in_another_order() -> Any:
    crossed(("left_step", "right_step"), 2)


@cases
def two_functions_in_another_order_at_first() -> Any:
    crossed(("upper_step", "lower_step"), 0)


@cases
def two_functions_of_one_name_in_another_order() -> Any:
    crossed(("twin_step", "twin_step"), 1)


@cases
def second_function_begins_on_one_rank_alone() -> Any:
    first, second = hand_written("sgd"), hand_written("sgd")

    def early_step(inputs: Any, labels: Any) -> Any:
        return first.step(inputs, labels)

    def late_step(inputs: Any, labels: Any) -> Any:
        return second.step(inputs, labels)

    early, late = optimized()(early_step), optimized()(late_step)
    train_steps(early, part)
    (late if RANK == LAST else early)(*part(batch(STEPS)))


# What steps do with gradients.


def accumulating(loop: Callable[[], Any]) -> Any:
    def train(wrap: Wrap, share: Share) -> Any:
        model = hand_written()

        def step(inputs: Any, labels: Any) -> Any:
            total = [tf.zeros_like(v) for v in model.variables]
            for index in loop():
                with tf.GradientTape() as tape:
                    micro = tf.reshape(inputs, [4, -1, models.FEATURES])[index]
                    loss = model.loss(micro, tf.reshape(labels, [4, -1])[index])
                gradients = tape.gradient(loss, model.variables)
                total = [t + g / 4 for t, g in zip(total, gradients, strict=True)]
            model.update(total)

        stepping = wrap(step)
        for number in range(STEPS):
            # The alone process cuts its joint batch otherwise; the mean over all is the same.
            stepping(*share(batch(number)))
        return model.variables, None

    return compared(train)


@cases
def accumulation_in_the_step() -> Any:
    return accumulating(lambda: range(4))


@cases
def accumulation_in_a_loop_of_the_graph() -> Any:
    return accumulating(lambda: tf.range(4))


@cases
def accumulation_over_calls() -> Any:
    def train(wrap: Wrap, share: Share) -> Any:
        model = hand_written("sgd")
        sums = [tf.Variable(tf.zeros_like(v), trainable=False) for v in model.variables]
        count = tf.Variable(0, trainable=False, dtype=tf.int64)

        def step(inputs: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = model.loss(inputs, labels)
            gradients = tape.gradient(loss, model.variables)
            for total, gradient in zip(sums, gradients, strict=True):
                total.assign_add(gradient)
            if count.assign_add(1) % 3 == 0:
                model.update([total / 3 for total in sums])
                for total in sums:
                    total.assign(tf.zeros_like(total))
            return loss

        stepping = wrap(step)
        for number in range(2 * STEPS + 1):
            stepping(*share(batch(number)))
        return [*model.variables, *sums], None

    return compared(train)


@cases
def clipping_after_averaging() -> Any:
    def train(wrap: Wrap, share: Share) -> Any:
        model = hand_written("sgd")

        def step(inputs: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = model.loss(inputs, labels)
            clipped, norm = tf.clip_by_global_norm(tape.gradient(loss, model.variables), 0.05)
            model.update(clipped)
            return norm

        stepping = wrap(step)
        norms = [float(stepping(*share(batch(number)))) for number in range(STEPS)]
        return model.variables, min(norms)

    return compared(train)


@cases
def frozen_and_shared_weights() -> Any:
    def train(wrap: Wrap, share: Share) -> Any:
        shared = variable([models.FEATURES, models.FEATURES], "shared", 1)
        head = variable([models.FEATURES, models.CLASSES], "head", 2)
        frozen = variable([models.FEATURES, models.FEATURES], "frozen", 3, trainable=False)

        def step(inputs: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                hidden = tf.tanh(tf.tanh(tf.tanh(inputs @ shared) @ frozen) @ shared)
                loss = models.cross_entropy(labels, hidden @ head)
                loss += 0.01 * tf.reduce_sum(tf.matmul(shared, shared, transpose_b=True) ** 2)
            descend([shared, head], tape.gradient(loss, [shared, head]))

        stepping = wrap(step)
        train_steps(stepping, share)
        return [shared, head, frozen], None

    return compared(train)


@cases
def parts_of_a_weight() -> Any:
    """The gradient is taken by what it was cut into, and put together again."""

    def train(wrap: Wrap, share: Share) -> Any:
        weight = variable([models.FEATURES, 2 * models.CLASSES], "joint", 1)

        def step(inputs: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                parts = tf.split(weight, 2, axis=1)
                tape.watch(parts)
                loss = models.cross_entropy(labels, tf.tanh(inputs @ parts[0]) + inputs @ parts[1])
            descend([weight], [tf.concat(tape.gradient(loss, parts), axis=1)])

        train_steps(wrap(step), share)
        return [weight], None

    return compared(train)


@cases
def gradients_by_what_a_function_was_given() -> Any:
    model = hand_written("sgd")

    @tf.function
    def slopes(weight: Any, inputs: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(weight)
            loss = tf.reduce_sum((inputs @ weight) ** 2)
        return tape.gradient(loss, weight)

    def step(inputs: Any, labels: Any) -> Any:
        weight = model.variables[0]
        descend([weight], [slopes(weight.read_value(), inputs)])

    optimized()(step)(*part(batch(0)))


# Functions and control flow.


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
        for one, value in zip(model.variables, weights, strict=True):
            one.assign(value)
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


# Kinds of gradients.


def embedding(head: bool, **options: Any) -> Any:
    def train(wrap: Wrap, share: Share) -> Any:
        table, final = variable([40, 6], "table", 1), variable([6, 3], "final", 2)
        chosen = [table, final] if head else [table]
        optimizer = tf.keras.optimizers.Adam(0.01)

        def step(words: Any, of: Any) -> Any:
            with tf.GradientTape() as tape:
                hidden = tf.tanh(tf.gather(table, words))
                loss = tf.reduce_sum((hidden @ final) ** 2) / tf.cast(of, DTYPE)
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
        told = {"sparse": kinds[0], "plan": None}
        if share is part and stepping.plan is not None:
            told["plan"] = list(stepping.plan.tensor_names)
        return [table, final], told

    return compared(train, **BRIEFLY, **options)


@cases
def embedding_gathered() -> Any:
    return embedding(True)


@cases
def embedding_made_dense() -> Any:
    return embedding(True, sparse_as_dense=True)


@cases
def embedding_alone() -> Any:
    return embedding(False)


@cases
def loss_scaling_by_hand() -> Any:
    def train(wrap: Wrap, share: Share) -> Any:
        model = hand_written("sgd")

        def step(inputs: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                scaled = model.loss(inputs, labels) * 1024.0
            model.update([g / 1024.0 for g in tape.gradient(scaled, model.variables)])

        stepping = wrap(step)
        train_steps(stepping, share)
        return model.variables, None

    return compared(train)


@cases
def mixed_precision() -> Any:
    """Half-precision layers; a step that overflows on one rank lowers the scale on all."""

    def train(wrap: Wrap, share: Share) -> Any:
        tf.keras.utils.set_random_seed(5)
        layers = tf.keras.layers
        model = tf.keras.Sequential(
            [
                layers.Input((models.FEATURES,)),
                layers.Dense(8, activation="tanh", dtype="mixed_float16"),
                layers.Dense(models.CLASSES, dtype="float32"),
            ]
        )
        optimizer = tf.keras.optimizers.LossScaleOptimizer(
            tf.keras.optimizers.SGD(0.05), initial_scale=256.0, dynamic_growth_steps=4
        )

        def step(inputs: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = models.cross_entropy(labels, model(inputs, training=True))
                scaled = optimizer.scale_loss(loss)
            gradients = tape.gradient(scaled, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        stepping = wrap(step)
        for number in range(STEPS):
            inputs, labels = batch(number)
            inputs = inputs.numpy().astype("float32")
            if number == 3:
                inputs[-1] = 1e30  # of the last rank
            stepping(*share((tf.constant(inputs), labels)))
        return model.trainable_variables, float(tf.convert_to_tensor(optimizer.dynamic_scale))

    return compared(train)


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
            squares = [tf.reduce_sum(tf.reshape(one, [len(one), -1]) ** 2, axis=1) for one in rows]
            factors = tf.minimum(tf.cast(1.0, DTYPE), 0.5 / tf.sqrt(tf.add_n(squares)))
            gradients = [tf.tensordot(factors, one, 1) / len(one) for one in rows]
            if share is part:
                gradients = [hvd.allreduce(one) for one in gradients]
            model.update(gradients)
            return [tf.reduce_mean(one, axis=0) for one in rows]

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


def looping_over_a_dataset(loop: Callable[[Any, Any], Any]) -> Any:
    """Three batches in each call, from a dataset that the step is given."""

    def train(wrap: Wrap, share: Share) -> Any:
        model = hand_written()

        def train_on(inputs: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = model.loss(inputs, labels)
            model.update(tape.gradient(loss, model.variables))
            return loss

        stepping = wrap(lambda dataset: loop(dataset, train_on))
        for number in range(STEPS):
            shares = [share(batch(3 * number + one)) for one in range(3)]
            stacked = tf.nest.map_structure(lambda *parts: tf.stack(parts), *shares)
            stepping(tf.data.Dataset.from_tensor_slices(stacked))
        return model.variables, None

    return compared(train)


@cases
def loop_over_a_dataset() -> Any:
    def steps(dataset: Any, train_on: Any) -> Any:
        total = tf.constant(0.0, DTYPE)
        for inputs, labels in dataset:
            total += train_on(inputs, labels)
        return total

    return looping_over_a_dataset(steps)


@cases
def loop_over_a_dataset_that_is_left_early() -> Any:
    def steps(dataset: Any, train_on: Any) -> Any:
        for number, (inputs, labels) in enumerate(dataset):
            if number > 1:
                break
            train_on(inputs, labels)

    return looping_over_a_dataset(steps)


@cases
def loop_over_a_dataset_that_only_tf_data_can_run() -> Any:
    """A loop variable changes its shape from batch to batch."""

    def steps(dataset: Any, train_on: Any) -> Any:
        losses = tf.zeros([0], DTYPE)
        for inputs, labels in dataset:
            losses = tf.concat([losses, [train_on(inputs, labels)]], 0)
        return losses

    return looping_over_a_dataset(steps)


class Trainer:
    """A step that is an object."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(self, inputs: Any, labels: Any, scale: float = 1.0) -> Any:
        with tf.GradientTape() as tape:
            loss = scale * self.model.loss(inputs, labels)
        self.model.update(tape.gradient(loss, self.model.variables))


@cases
def steps_that_are_objects() -> Any:
    def train(wrap: Wrap, share: Share) -> Any:
        model = hand_written()
        step = Trainer(model)
        alone = share is whole
        for one in (
            step,
            functools.partial(step, scale=0.5),
            tf.function(step) if alone else tf_libra.optimize(**BRIEFLY)(step),
        ):
            stepping = one if hasattr(one, "several") else wrap(one)
            train_steps(stepping, share)
        return model.variables, None

    return compared(train)


@cases
def evaluated_by_the_same_function() -> Any:
    """A flag says whether to train. Evaluations are no steps: rank 0 evaluates more often."""

    def train(wrap: Wrap, share: Share) -> Any:
        model = hand_written()

        def step(inputs: Any, labels: Any, training: bool = True) -> Any:
            return model.step(inputs, labels) if training else model.loss(inputs, labels)

        stepping = wrap(step)
        for number in range(2 * STEPS):
            stepping(*share(batch(number)))
            before = values(model.variables)
            for _ in range(1 if RANK else 2):
                loss = stepping(*share(batch(number)), training=False)
                np.testing.assert_allclose(loss, model.loss(*share(batch(number))))
            assert all((before[k] == v).all() for k, v in values(model.variables).items())
        return model.variables, None

    return compared(train)


@cases
def two_threads_that_step_at_once() -> Any:
    """All on one batch, so that it does not matter whose turn it is."""

    def train(wrap: Wrap, share: Share) -> Any:
        model = hand_written()
        step = wrap(model.step)

        def steps() -> None:
            for _ in range(STEPS):
                step(*share(batch(0)))

        with concurrent.futures.ThreadPoolExecutor(1 if share is whole else 2) as pool:
            for one in [pool.submit(steps) for _ in range(2)]:
                one.result()
        return model.variables, None

    return compared(train)


@cases
def loss_scale_that_begins_too_high() -> Any:
    """One process computes each share's gradients apart, in half precision as the ranks do."""
    scales: list[float] = []

    def train(wrap: Wrap, share: Share) -> Any:
        tf.keras.utils.set_random_seed(5)
        layers = tf.keras.layers
        model = tf.keras.Sequential(
            [
                layers.Input((models.FEATURES,)),
                layers.Dense(8, activation="tanh", dtype="mixed_float16"),
                layers.Dense(models.CLASSES, dtype="mixed_float16"),
            ]
        )
        optimizer = tf.keras.optimizers.LossScaleOptimizer(
            tf.keras.optimizers.SGD(0.05), initial_scale=2.0**20, dynamic_growth_steps=3
        )
        shares = SIZE if share is whole else 1

        def step(inputs: Any, labels: Any) -> Any:
            found = []
            for x, y in zip(tf.split(inputs, shares), tf.split(labels, shares), strict=True):
                with tf.GradientTape() as tape:
                    outputs = tf.cast(model(x, training=True), tf.float32)
                    scaled = optimizer.scale_loss(models.cross_entropy(y, outputs))
                found.append(tape.gradient(scaled, model.trainable_variables))
            gradients = [tf.add_n(parts) / shares for parts in zip(*found, strict=True)]
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        stepping = wrap(step)
        for number in range(2 * STEPS):
            inputs, labels = batch(number)
            stepping(*share((tf.cast(inputs, tf.float32), labels)))
            scales.append(float(tf.convert_to_tensor(optimizer.dynamic_scale)))
        return model.trainable_variables, scales

    return compared(train)


@cases
def clustered_by_xla() -> Any:
    def train(wrap: Wrap, share: Share) -> Any:
        model = hand_written()
        train_steps(wrap(model.step), share)
        return model.variables, None

    tf.config.optimizer.set_jit(True)
    try:
        return compared(train)
    finally:
        tf.config.optimizer.set_jit(False)


@cases
def joined_by_all_ranks() -> Any:
    model = hand_written("sgd")
    step = optimized()(model.step)
    lasts = []
    for _ in range(2):
        train_steps(step, part)
        lasts.append(int(hvd.join()))
    cases.save(**values(model.variables))
    return lasts


@cases
def joined_by_one_rank() -> Any:
    model = hand_written("sgd")
    step = optimized()(model.step)
    train_steps(step, part)
    if RANK == LAST:
        hvd.join()
    else:
        step(*part(batch(STEPS)))


@cases
def functions_run_eagerly() -> Any:
    model = hand_written("sgd")
    step = optimized()(model.step)
    step(*part(batch(0)))
    tf.config.run_functions_eagerly(True)
    try:
        step(*part(batch(1)))
    finally:
        tf.config.run_functions_eagerly(False)


def many() -> list[tf.Variable]:
    return [variable([models.FEATURES], f"layer{i}", i) for i in range(640)]


@cases
def six_hundred_tensors() -> Any:
    def train(wrap: Wrap, share: Share) -> Any:
        layers = many()

        def step(inputs: Any, labels: Any) -> Any:
            mean = tf.reduce_mean(inputs, axis=0)
            with tf.GradientTape() as tape:
                loss = tf.add_n([tf.nn.l2_loss(layer - mean) for layer in layers])
            descend(layers, tape.gradient(loss, layers))

        stepping = wrap(step)
        for number in range(3):
            stepping(*share(batch(number)))
        return layers, None

    edges = [0, 1, 2, *range(20, 641, 20)]
    plan = models.plan_of(many(), SIZE, edges, [1 + i % 2 for i in range(len(edges) - 1)])
    return compared(train, plan=plan)


# Second derivatives.


@cases
def gradient_penalty() -> Any:
    """Differentiates by a tensor that is no variable, as in WGAN-GP."""

    def train(wrap: Wrap, share: Share) -> Any:
        model = Adversaries()

        def step(real: Any, noise: Any) -> Any:
            with tf.GradientTape() as outer:
                fake = tf.nn.tanh(noise @ model.generator[0])
                between = (real + fake) / 2.0
                with tf.GradientTape() as inner:
                    inner.watch(between)
                    judged = model.judged(between)
                slopes = inner.gradient(judged, between)
                norms = tf.sqrt(tf.reduce_sum(slopes**2, axis=1) + 1e-6)
                loss = tf.reduce_mean(model.judged(fake)) - tf.reduce_mean(model.judged(real))
                loss += 10.0 * tf.reduce_mean((norms - 1.0) ** 2)
            descend(model.judge, outer.gradient(loss, model.judge), 0.01)

        stepping = wrap(step)
        for number in range(STEPS):
            stepping(*share((batch(number)[0], noise_of(number))))
        return model.variables, None

    return compared(train)


class Sharp(models.HandWritten):
    """Punishes the size of the gradient of its loss."""

    def step(self, inputs: Any, labels: Any) -> Any:
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                loss = self.loss(inputs, labels)
            gradients = inner.gradient(loss, self.variables)
            loss += 0.1 * tf.add_n([tf.reduce_sum(gradient**2) for gradient in gradients])
        self.update(outer.gradient(loss, self.variables))


@cases
def penalty_on_the_gradient_of_all_data() -> Any:
    def train(wrap: Wrap, share: Share) -> Any:
        model = Sharp(DTYPE, "sgd")
        stepping = wrap(model.step)
        train_steps(stepping, share)
        return model.variables, None

    return compared(train, **BRIEFLY, inner_gradients="average")


@cases
def adapting_to_a_task_of_each_rank() -> Any:
    """One process adapts to both tasks, one after the other."""

    def train(wrap: Wrap, share: Share) -> Any:
        model = hand_written("sgd")

        def loss_with(weights: Any, inputs: Any, labels: Any) -> Any:
            hidden = tf.tanh(inputs @ weights[0] + weights[1])
            hidden = tf.tanh(hidden @ weights[2] + weights[3])
            return models.cross_entropy(labels, hidden @ weights[4] + weights[5])

        def step(inputs: Any, labels: Any) -> Any:
            with tf.GradientTape() as outer:
                losses = []
                for first in range(0, len(labels), models.SHARD):
                    task = slice(first, first + models.SHARD)
                    with tf.GradientTape() as inner:
                        before = loss_with(model.variables, inputs[task], labels[task])
                    slopes = inner.gradient(before, model.variables)
                    adapted = [
                        v - 0.2 * slope for v, slope in zip(model.variables, slopes, strict=True)
                    ]
                    losses.append(loss_with(adapted, inputs[task][::-1], labels[task]))
                loss = tf.add_n(losses) / len(losses)
            model.update(outer.gradient(loss, model.variables))

        stepping = wrap(step)
        train_steps(stepping, share)
        return model.variables, None

    return compared(train, **BRIEFLY, inner_gradients="local")


@cases
def second_derivatives_undecided() -> Any:
    model = Sharp(DTYPE, "sgd")
    optimized()(model.step)(*part(batch(0)))


# Numbers that are none.


def not_finite(mode: str) -> Any:
    """One rank's input is NaN in one step, another's infinite in a later one."""
    bad = {3: (LAST, np.nan), 5: (0, np.inf)}

    def train(wrap: Wrap, share: Share) -> Any:
        model = hand_written()
        mean = tf.Variable(np.zeros(models.FEATURES), trainable=False, name="mean")
        calls = tf.Variable(0, trainable=False, name="calls")

        def step(inputs: Any, labels: Any) -> Any:
            calls.assign_add(1)
            if share is whole:
                mean.assign(0.9 * mean + 0.1 * tf.reduce_mean(inputs))
            return model.step(inputs, labels)

        stepping = wrap(step)
        told = []
        for number in range(2 * STEPS):
            joint = batch(number)
            if share is whole:
                if number not in bad:
                    stepping(*joint)
                continue
            inputs, labels = part(joint)
            rank, value = bad.get(number, (None, 0.0))
            if rank == RANK:
                inputs = inputs + value
            before = [v.numpy() for v in [*model.variables, calls]]
            try:
                loss = stepping(inputs, labels)
            except FloatingPointError as error:
                told.append([number, str(error)])
            else:
                if number in bad:
                    told.append([number, bool(np.isfinite(loss))])
            if number in bad:
                after = [v.numpy() for v in [*model.variables, calls]]
                assert all((a == b).all() for a, b in zip(after, before, strict=True))
        return [*model.variables, calls], told

    return compared(train, **BRIEFLY, check_numerics=mode)


@cases
def not_finite_raises() -> Any:
    return not_finite("raise")


@cases
def not_finite_is_skipped() -> Any:
    return not_finite("skip")


@cases
def not_finite_in_an_embedding() -> Any:
    table = variable([8, 2], "table", 1)

    def step(words: Any, factor: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, words)) * factor
        descend([table], [tape.gradient(loss, table)])

    stepping = optimized(**BRIEFLY, check_numerics="raise")(step)
    stepping(tf.constant([1, 2]), tf.constant(1.0, tf.float64))
    factor = np.nan if RANK == LAST else 1.0
    stepping(tf.constant([1, 2]), tf.constant(factor, tf.float64))


# Data and checkpoints.


def read(sizes: Any, epochs: int) -> Any:
    """A step that takes its batch from an iterator, in the graph, until there is none."""
    model = hand_written()

    def dataset() -> Any:
        numbers = tf.data.Dataset.range(sizes[RANK])
        return numbers.map(lambda n: tf.cast(tf.fill([4, models.FEATURES], n), DTYPE) / 7.0)

    def step(iterator: Any) -> Any:
        return model.step(next(iterator), tf.constant([0, 1, 2, 3]))

    stepping = optimized()(step)
    ends = []
    for _ in range(epochs):
        iterator, count = iter(dataset()), 0
        try:
            while True:
                stepping(iterator)
                count += 1
        except tf.errors.OutOfRangeError:
            ends.append(count)
    cases.save(**values(model.variables))
    return ends


@cases
def all_data_end_in_the_same_step() -> Any:
    return read([5] * SIZE, epochs=3)


@cases
def data_of_one_rank_end_early() -> Any:
    read([*[6] * LAST, 4], epochs=1)


@cases
def checkpoint_restored_on_one_rank() -> Any:
    model = hand_written()
    step = optimized()(model.step)
    step(*part(batch(0)))
    checkpoint = tf.train.Checkpoint(variables=model.variables)
    path = checkpoint.write(str(FOLDER / f"checkpoint.{RANK}"))
    for number in range(1, STEPS):
        step(*part(batch(number)))
    step.check_variables()
    if RANK == 0:
        checkpoint.read(path)
    step.check_variables()


@cases
def checkpoint_restored_on_one_rank_before_the_first_step() -> Any:
    model = hand_written()
    checkpoint = tf.train.Checkpoint(variables=model.variables)
    path = checkpoint.write(str(FOLDER / f"first.{RANK}"))
    model.variables[0].assign_add(tf.ones_like(model.variables[0]))
    if RANK == 0:
        checkpoint.read(path)
    optimized()(model.step)(*part(batch(0)))
    cases.save(**values(model.variables))


@cases
def same_plan_file() -> Any:
    """Three times from the start; the bits of all weights."""
    digests = []
    for _ in range(3):
        restart_engine()
        model = models.HandWritten("float32", "adam")
        step = optimized(plan=PLAN_FILE)(model.step)
        for number in range(4 * STEPS):
            step(*models.part(models.batch(number, SIZE, "float32"), RANK, SIZE))
        bits = b"".join(v.numpy().tobytes() for v in model.variables)
        digests.append(hashlib.sha256(bits).hexdigest())
    return digests


@cases
def function_that_was_traced_before_a_reset() -> Any:
    """The last case: the step goes on in another job of the same ranks, as in elastic training."""

    def train(wrap: Wrap, share: Share) -> Any:
        model = hand_written()

        @tf.function
        def gradients_of(inputs: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = model.loss(inputs, labels)
            return tape.gradient(loss, model.variables)

        def step(inputs: Any, labels: Any) -> None:
            model.update(gradients_of(inputs, labels))

        stepping = wrap(step)
        train_steps(stepping, share)
        if share is part:
            hvd.shutdown()
            hvd.init()
        train_steps(stepping, share)
        return model.variables, None

    return compared(train)


if __name__ == "__main__":
    hvd.init()
    cases.run()
