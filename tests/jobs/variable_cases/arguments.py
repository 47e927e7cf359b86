"""Variables that are arguments of the step, and models of the same names."""

from typing import Any

import models
import numpy as np
import tensorflow as tf
from harness import RANK

import tf_libra
from variable_cases.common import BRIEFLY, LAST, bits, cases, own_seed, shard, train


def descend(variables: Any, inputs: Any, labels: Any) -> Any:
    with tf.GradientTape() as tape:
        hidden = tf.nn.tanh(inputs @ variables["w0"] + variables["b0"])
        loss = models.cross_entropy(labels, hidden @ variables["w1"])
    chosen = [variables[name] for name in ("w0", "b0", "w1")]
    for variable, gradient in zip(chosen, tape.gradient(loss, chosen), strict=True):
        variable.assign_sub(0.1 * gradient)
    return loss


def weights(seed: int) -> dict[str, tf.Variable]:
    random = np.random.default_rng(seed)

    def made(name: str, *shape: int) -> tf.Variable:
        return tf.Variable(random.normal(size=shape).astype("float32"), name=name)

    return {
        "w0": made("w0", models.FEATURES, 8),
        "b0": made("b0", 8),
        "w1": made("w1", 8, models.CLASSES),
    }


@cases
def variables_as_arguments() -> Any:
    step = tf_libra.optimize(**BRIEFLY)(tf.function(descend))
    folds = [weights(10 * fold + RANK) for fold in range(3)]
    for fold in folds:
        train(step, fold)
    step.check_variables()
    return {
        "bits": [bits(fold.values()) for fold in folds],
        "traces": step._training._tracer.function.experimental_get_tracing_count(),
    }


@cases
def variables_as_arguments_refused() -> Any:
    """The first are equal, the next are not."""
    step = tf_libra.optimize(broadcast_variables=False, **BRIEFLY)(tf.function(descend))
    train(step, weights(1))
    train(step, weights(own_seed()))


@cases
def variables_as_arguments_checked() -> Any:
    step = tf_libra.optimize(**BRIEFLY)(tf.function(descend))
    folds = [weights(1), weights(2)]
    for fold in folds:
        train(step, fold)
    if RANK == LAST:
        folds[0]["b0"].assign_add(tf.ones([8]))
    step.check_variables()


@cases
def variables_as_arguments_are_undone() -> Any:
    step = tf_libra.optimize(check_numerics="skip", **BRIEFLY)(tf.function(descend))
    fold = weights(1)
    train(step, fold)
    before = bits(fold.values())
    inputs, labels = shard()
    step(fold, inputs * (np.nan if RANK == LAST else 1), labels)
    return bits(fold.values()) == before


@cases
def models_of_the_same_names() -> Any:
    """K-fold: the step gets the model itself."""
    step = tf_libra.optimize(**BRIEFLY)(
        tf.function(lambda model, inputs, labels: model.step(inputs, labels))
    )
    folds = [models.HandWritten("float32", "sgd", 10 * fold + RANK) for fold in range(3)]
    for fold in folds:
        train(step, fold)
    step.check_variables()
    return [bits(fold.variables) for fold in folds]
