"""Runs that TensorBoard is to show: one that makes a plan, and one after it that is given one.

    tab.py LOGDIR

Each in a job of its own (TF_LIBRA_JOB_CASES); in the same folder, as when a job is started again.
"""

import itertools
import sys
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from harness import RANK, SIZE, Cases

import tf_libra
from tf_libra.autotune import Phase

WIDTHS = (64, 384, 384, 384, 10)
STEPS_UNDER_PLAN = 12
cases = Cases()
logdir = Path(sys.argv[1])


def variables() -> list[tf.Variable]:
    """Weights of dense layers, in forward order."""
    random = np.random.default_rng(0)
    shapes = itertools.pairwise(WIDTHS)
    return [
        tf.Variable(random.normal(size=shape).astype("float32") / 20, name=f"dense_{i}/kernel")
        for i, shape in enumerate(shapes)
    ]


def train(**options: Any) -> Any:
    weights = variables()

    @tf_libra.optimize(tf_libra.strategies.Libra(threads=(1, 2)), logdir=logdir, **options)
    @tf.function
    def train_step(inputs):
        with tf.GradientTape() as tape:
            hidden = inputs
            for weight in weights:
                hidden = tf.nn.tanh(hidden @ weight)
            loss = tf.reduce_mean(hidden**2)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.1 * gradient)
        return loss

    random = np.random.default_rng(RANK)
    under_plan = 0
    while under_plan < STEPS_UNDER_PLAN:
        train_step(tf.constant(random.normal(size=(64, WIDTHS[0])).astype("float32")))
        under_plan += train_step.phase is Phase.RUN
    return train_step


def outcome_of(step: Any) -> dict[str, Any]:
    return {
        "plan": step.plan.to_json(),
        "explain": step.explain(),
        "fitted": step.cost_model is not None,
    }


@cases
def made() -> dict[str, Any]:
    return outcome_of(train(tuning=tf_libra.Tuning(max_seconds=300)))


@cases
def given() -> dict[str, Any]:
    names = [variable.name.split(":")[0] for variable in reversed(variables())]
    sizes = [4 * a * b for a, b in itertools.pairwise(WIDTHS)][::-1]
    groups = (tf_libra.TensorGroup(0, 1, 1), tf_libra.TensorGroup(1, len(names), 2))
    plan = tf_libra.Plan(groups, tuple(names), tuple(sizes), SIZE, "by hand")
    return outcome_of(train(plan=plan))


if __name__ == "__main__":
    hvd.init()
    cases.run()
