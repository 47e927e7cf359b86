"""Variables that several steps, elastic states and broadcasts use."""

import functools
import gc
import itertools
import types

import harness
import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from layer_stack import Stack, batch

import tf_libra
import tf_libra.elastic
from pipeline_cases.common import AT_ONCE, SAMPLES, cases, in_stages
from tests.model_parallel import models
from tests.model_parallel.job import batches, build_model


def objects_in_turns():
    """Trains two objects of a class with a decorated method."""

    class Trainer:
        def __init__(self):
            self.stack = Stack()

        @tf_libra.optimize(in_stages(2))
        @tf.function
        def step(self, inputs, labels):
            return self.stack.step(inputs, labels)

    trainers, alone = [Trainer(), Trainer()], [Stack(), Stack()]
    for number in range(6):
        joint = batch(number)
        trainers[number % 2].step(*map(harness.own, joint))
        alone[number % 2].step(*joint)
    differences = []
    for trainer, wanted in zip(trainers, alone, strict=True):
        assert trainer.step.plan is not None
        trainer.step.synchronize_variables()
        pairs = zip(trainer.stack.weights, wanted.weights, strict=True)
        differences += [float(tf.reduce_max(tf.abs(a - b))) for a, b in pairs]
    apart = tf.reduce_max(tf.abs(alone[0].weights[0] - alone[1].weights[0]))
    return {"differ": max(differences), "apart": float(apart)}


def adversarial():
    """Returns a generator and a discriminator: their variables, and a step for each."""
    pairs = itertools.pairwise([8, 8, 12, 8, 12, 8, 1])
    weights = [
        tf.Variable(tf.random.stateless_normal(shape, [7, i]) / shape[0] ** 0.5, name=f"dense{i}")
        for i, shape in enumerate(pairs)
    ]

    def run(layers, x):
        for weight in layers:
            x = tf_libra.boundary(tf.tanh(x @ weight))
        return x

    def step_of(trained, sign):
        optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)
        optimizer.build(trained)

        def step(noise, real):
            with tf.GradientTape() as tape:
                fake = run(weights[3:], run(weights[:3], noise))
                loss = sign * tf.reduce_mean(fake - run(weights[3:], real))
            optimizer.apply_gradients(zip(tape.gradient(loss, trained), trained, strict=True))
            return loss

        return step

    return weights, step_of(weights[3:], 1.0), step_of(weights[:3], -1.0)


NOISE = [[tf.random.stateless_normal([24, 8], [i, seed]) for seed in range(2)] for i in range(7)]


@functools.cache
def alone_in_turns():
    """Returns what one process trains: the variables' values before and after its steps."""
    variables, first, second = adversarial()
    start = [variable.numpy() for variable in variables]
    for number, (noise, real) in enumerate(NOISE):
        (first, second, second)[number % 3](noise, real)
    return start, [variable.numpy() for variable in variables]


def in_turns(*, release=False):
    """Alternates steps with shared variables, in stages and data-parallel."""
    start, expected = alone_in_turns()
    variables, first, second = adversarial()
    decorated = [
        tf_libra.optimize(in_stages(2, release_variables=release))(tf.function(first)),
        tf_libra.optimize(in_stages(2, release_variables=release))(tf.function(second)),
        tf_libra.optimize("syneasgd", **AT_ONCE)(tf.function(second)),
    ]
    for number, (noise, real) in enumerate(NOISE):
        decorated[number % 3](harness.own(noise), harness.own(real))
    for step in decorated:
        step.synchronize_variables()
    pairs = list(zip(variables, expected, start, strict=True))
    return {
        "difference": max(float(np.abs(a.numpy() - b).max()) for a, b, _ in pairs),
        "moved": min(float(np.abs(b - c).max()) for _, b, c in pairs),
    }


def gone():
    """Drops a step, on one rank earlier, before another one uses its variables."""
    expected, *alone = adversarial()
    variables, first, second = adversarial()
    start = [variable.numpy() for variable in expected]
    for number, (step, function) in enumerate(zip((first, second), alone, strict=True)):
        strategy, options = (in_stages(2), {}) if number == 0 else ("syneasgd", AT_ONCE)
        decorated = tf_libra.optimize(strategy, **options)(tf.function(step))
        noise, real = NOISE[number]
        function(noise, real)
        decorated(harness.own(noise), harness.own(real))
        reference = decorated if harness.RANK == 1 and number == 0 else None
        del decorated
        gc.collect()
    del reference
    gc.collect()
    pairs = list(zip(variables, expected, start, strict=True))
    return {
        "difference": max(float(np.abs(a.numpy() - b.numpy()).max()) for a, b, _ in pairs),
        "moved": min(float(np.abs(b.numpy() - c).max()) for _, b, c in pairs),
    }


def ends():
    """Drops a step together with its variables, as at the end of a script's main function."""

    def main():
        trained = build_model(models.deep)
        return tf_libra.optimize(in_stages(2))(tf.function(trained.step)), trained

    def train_and_leave():
        [step, trained] = main()  # the step is dropped first
        [(images, labels)] = batches(1, SAMPLES)
        step(harness.own(images), harness.own(labels))
        assert trained.variables

    train_and_leave()
    gc.collect()


def committed():
    """Commits and restores variables of both stages with both kinds of elastic states."""
    stack, alone = Stack(), Stack()
    model = types.SimpleNamespace(variables=stack.weights, build=None, built=True)
    optimizer = types.SimpleNamespace(variables=lambda: stack.momenta)
    every, wanted = [*stack.weights, *stack.momenta], [*alone.weights, *alone.momenta]
    ours = tf_libra.elastic.TensorFlowState(every)
    plain = hvd.elastic.TensorFlowState(every)
    keras = hvd.elastic.TensorFlowKerasState(model, optimizer)
    step = tf_libra.optimize(in_stages(2, release_variables=True))(tf.function(stack.step))
    handles = [variable.handle for variable in every]

    def differs():
        """Compares values that are here, without a read of variables, which would fetch them."""
        values = [
            tf.raw_ops.ReadVariableOp(resource=handle, dtype=value.dtype)
            for handle, value in zip(handles, wanted, strict=True)
        ]
        return max(
            float(tf.reduce_max(tf.abs(a - b))) if a.shape == b.shape else np.inf
            for a, b in zip(values, wanted, strict=True)
        )

    def train(number):
        joint = batch(number)
        step(*map(harness.own, joint))
        alone.step(*joint)

    ways = itertools.product(("commit", "save", "sync"), (ours, plain, keras))
    weights = tf_libra.elastic.TensorFlowState(stack.weights)
    found = {"kept": [], "restored": []}
    for number, (way, state) in enumerate([*ways, ("commit", weights)]):
        train(number)
        assert differs() == np.inf
        getattr(state, way)()
        found["kept"].append(differs())
    for state in (ours, plain, keras):
        state.commit()
        committed = [value.numpy() for value in every]
        train(0)
        state.restore()
        found["restored"] += [
            bool((a.numpy() == b).all()) for a, b in zip(every, committed, strict=True)
        ]
        for expected, value in zip(wanted, committed, strict=True):
            expected.assign(value)
        step.synchronize_variables()
        state.restore()
    return found


def broadcast_after_batches():
    """Broadcasts variables after the first batch, as Horovod's examples do, from either rank."""
    stack, alone = Stack(), Stack()
    every, wanted = [*stack.weights, *stack.momenta], [*alone.weights, *alone.momenta]
    step = tf_libra.optimize(in_stages(2))(tf.function(stack.step))
    differences = []
    for number, options in enumerate(({}, {"inplace": True}, {})):
        joint = batch(number)
        step(*map(harness.own, joint))
        alone.step(*joint)
        hvd.broadcast_variables(every, root_rank=number % 2, **options)
        differences += [
            float(tf.reduce_max(tf.abs(a - b))) for a, b in zip(every, wanted, strict=True)
        ]
    return {"differ": max(differences)}


if harness.SIZE == 2:
    cases.add("committed", committed)
    cases.add("gone", gone)
    cases.add("ends", ends)
    cases.add("in_turns", in_turns)
    cases.add("objects_in_turns", objects_in_turns)
    cases.add("in_turns_released", lambda: in_turns(release=True))
    cases.add("broadcast_after_batches", broadcast_after_batches)
