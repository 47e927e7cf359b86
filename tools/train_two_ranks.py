"""Trains on two ranks of this machine under a plan, with nothing but TF-Libra and TensorFlow.

For environments that have no Horovod, as that in which `tools/try_wheel.py` tries a wheel: the
ranks find each other through pipes of the process that starts them. Weights are compared with those
of one process that trains on the joint batch, and the graph is checked for the plan's groups.
"""

import itertools
import multiprocessing
import os
import sys
from multiprocessing.connection import Connection
from typing import Any

NUM_RANKS = 2
NUM_STEPS = 3
ROWS = 8  # of a rank's batch
WIDTHS = (16, 32, 32, 4)
SECONDS = 300.0


def plan_of(names: list[str], num_bytes: list[int]) -> Any:
    """Two groups, of two threads at most, by a model that says so."""
    import tf_libra

    profile = tf_libra.BackwardProfile.from_arrays(num_bytes, [1e-3] * len(names), names)
    cost = tf_libra.ContentionModel(
        num_workers=NUM_RANKS,
        hop_latency=1e-5,
        compute=(1.0, 0.05),
        overlapped=(1e7, 5e6, 0.5),
        exclusive=(2e7, 5e6, 0.5),
    )
    return tf_libra.make_plan(
        profile, cost, tf_libra.strategies.Libra(threads=(1, 2), max_groups=2)
    )


class Training:
    """A small network, its data, and a step of gradient descent."""

    def __init__(self) -> None:
        """Begins with the same weights everywhere."""
        import tensorflow as tf

        random = tf.random.Generator.from_seed(7)
        self.weights = [
            tf.Variable(random.normal((m, n), stddev=0.3, dtype=tf.float64), name=f"layer_{i}")
            for i, (m, n) in enumerate(itertools.pairwise(WIDTHS))
        ]
        self.features = random.normal((NUM_RANKS * ROWS, WIDTHS[0]), dtype=tf.float64)
        self.targets = random.normal((NUM_RANKS * ROWS, WIDTHS[-1]), dtype=tf.float64)
        self.names = [f"layer_{i}" for i in reversed(range(len(self.weights)))]  # backward order

    def step(
        self, features: Any, targets: Any, average: Any = lambda _, gradient: gradient
    ) -> None:
        """Updates the weights by the gradients, each handed to `average` first."""
        import tensorflow as tf

        with tf.GradientTape() as tape:
            outputs = features
            for weight in self.weights:
                outputs = tf.tanh(outputs @ weight)
            loss = tf.reduce_mean((outputs - targets) ** 2)
        gradients = tape.gradient(loss, self.weights)
        averages = [
            average(name, gradient)
            for name, gradient in zip(self.names, reversed(gradients), strict=True)
        ]
        for weight, gradient in zip(reversed(self.weights), averages, strict=True):
            weight.assign_sub(0.5 * gradient)

    def values(self) -> list[Any]:
        """The weights now."""
        return [weight.numpy() for weight in self.weights]


def rank_main(rank: int, others: Connection) -> None:
    """One rank: meets the other, trains, and sends its weights and what its graph has."""
    import tensorflow as tf

    from tf_libra.backends import engine
    from tf_libra.internal import native
    from tf_libra.runtime import grappler

    training = Training()
    address = engine.listen(engine.UNIX)
    others.send((address, os.urandom(engine.SECRET_BYTES)))
    addresses, secret = others.recv()
    running = engine.connect(rank, addresses, secret, 2, SECONDS, SECONDS)
    sizes = {f"layer_{i}": 8 * int(tf.size(weight)) for i, weight in enumerate(training.weights)}
    plan = plan_of(training.names, [sizes[name] for name in training.names])
    grappler.register(plan)

    def average(name: str, gradient: Any) -> Any:
        return native.load().ops.libra_all_reduce(tensors=[gradient], tensor_names=[name])[0]

    mine = slice(rank * ROWS, (rank + 1) * ROWS)
    step = tf.function(lambda x, y: training.step(x, y, average))
    with grappler.calling(grappler.call_options(plan)):
        for _ in range(NUM_STEPS):
            step(training.features[mine], training.targets[mine])
    groups = [group.tensor_names for group in grappler.report(plan).latest.groups]
    wanted = [plan.tensor_names[group.start : group.stop] for group in plan.groups]
    others.send((training.values(), groups == wanted, len(plan.groups)))
    running.close()


def main() -> int:
    """Starts both ranks and compares; 1 where something is not as it should be."""
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(NUM_RANKS)]
    ranks = [
        context.Process(target=rank_main, args=(rank, pipes[rank][1]), daemon=True)
        for rank in range(NUM_RANKS)
    ]
    for rank in ranks:
        rank.start()
    for _, theirs in pipes:
        theirs.close()

    def heard() -> list[Any]:
        for ours, _ in pipes:
            if not ours.poll(SECONDS):
                raise TimeoutError(f"a rank has said nothing for {SECONDS:.0f} s")
        return [ours.recv() for ours, _ in pipes]

    found = heard()
    for ours, _ in pipes:
        ours.send(([address for address, _ in found], found[0][1]))
    outcomes = heard()
    for rank in ranks:
        rank.join(SECONDS)

    import numpy as np

    alone = Training()
    for _ in range(NUM_STEPS):
        alone.step(alone.features, alone.targets)
    for values, as_planned, num_groups in outcomes:
        if not as_planned:
            print(f"the graph does not have the {num_groups} groups of the plan", file=sys.stderr)
            return 1
        for value, expected in zip(values, alone.values(), strict=True):
            np.testing.assert_allclose(value, expected, rtol=1e-9)
    print(f"{NUM_RANKS} ranks trained {NUM_STEPS} steps to the weights of one, under a plan")
    return 0


if __name__ == "__main__":
    sys.exit(main())
