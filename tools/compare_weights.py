#!/usr/bin/env python3
"""Compares the weights that two trees of this project train on the same seeds, bit by bit.

    python tools/compare_weights.py --before PATH [--after PATH] [--np 2] [--steps 12]

Each tree must be built (`make setup`, or a copy of the extension); both run in this environment. A
job for each network trains it with every optimizer under every strategy. Prints a line per case;
exits with 1 if a weight differs, or a job fails.
"""

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

NETWORKS = ("dense", "convolutional", "embedding")
OPTIMIZERS = ("sgd", "adam")
STRATEGIES = ("wfbp", "mg-wfbp", "libra", "spp", "deeppool")
CASES = tuple(itertools.product(OPTIMIZERS, STRATEGIES))
SECONDS = 300.0


def compare(before: Path, after: Path, num_ranks: int, steps: int) -> bool:
    """Trains all cases in both trees; returns whether every weight has the same bits."""
    same = True
    with tempfile.TemporaryDirectory() as folder:
        for network in NETWORKS:
            path = Path(folder) / f"{network}.npz"
            try:
                first, second = (
                    _train(tree, network, num_ranks, steps, path) for tree in (before, after)
                )
            except RuntimeError as error:
                print(f"{network}: {error}", flush=True)
                same = False
                continue
            for case in CASES:
                name = " ".join(case)
                verdict = _difference(first, second, f"{name} ")
                same &= verdict is None
                print(f"{network} {name:20} {verdict or 'same'}", flush=True)
    return same


def _train(
    tree: Path, network: str, num_ranks: int, steps: int, path: Path
) -> dict[str, np.ndarray]:
    """Returns the weights of rank 0 by case and number.

    Raises:
        RuntimeError: the job fails; has its last error.
    """
    environment = {**os.environ, "PYTHONPATH": str(tree), "TF_CPP_MIN_LOG_LEVEL": "3"}
    launcher = [sys.executable, "-c", "import sys; from tf_libra.cli import main; sys.exit(main())"]
    worker = ["python", str(Path(__file__).resolve()), "--worker", network, str(steps), str(path)]
    path.unlink(missing_ok=True)
    done = subprocess.run(
        [*launcher, "run", "-np", str(num_ranks), *worker],
        env=environment,
        cwd=tree,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    if done.returncode or not path.exists():
        lines = [line for line in (done.stdout + done.stderr).splitlines() if "Error" in line]
        raise RuntimeError(f"{tree}: {lines[-1] if lines else f'status {done.returncode}'}")
    with np.load(path) as saved:
        return dict(saved)


def _difference(
    before: dict[str, np.ndarray], after: dict[str, np.ndarray], prefix: str
) -> str | None:
    """Returns the first difference between weights whose names have a prefix; None for none."""
    names = [name for name in before if name.startswith(prefix)]
    if names != [name for name in after if name.startswith(prefix)] or not names:
        return "DIFFERS: other weights"
    for name in names:
        if before[name].tobytes() != after[name].tobytes():
            count = int(np.sum(before[name] != after[name]))
            return f"DIFFERS: {name}: {count} of {before[name].size} elements"
    return None


def train(network: str, steps: int, path: str) -> None:
    """Trains all cases of a network on this rank; rank 0 writes the weights to `path`."""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    hvd.init()
    found: dict[str, np.ndarray] = {}
    for optimizer, strategy in CASES:
        weights = _train_case(network, optimizer, strategy, steps, hvd.rank())
        found |= {f"{optimizer} {strategy} {i}": value for i, value in enumerate(weights)}
    if hvd.rank() == 0:
        np.savez(path, **cast(Any, found))


def _train_case(
    network: str, optimizer: str, strategy: str, steps: int, rank: int
) -> list[np.ndarray]:
    """Returns the weights after some steps, as this rank has them."""
    import keras
    import tensorflow as tf

    import tf_libra

    keras.utils.clear_session()
    keras.utils.set_random_seed(7)
    model, inputs, labels = _build(keras, network, rank)
    rules = {"sgd": lambda: keras.optimizers.SGD(0.05, momentum=0.9), "adam": keras.optimizers.Adam}
    rule = rules[optimizer]()
    rule.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # Measured times would choose the number of stages, and with it the order of sums.
    objects: dict[str, Any] = {
        "spp": tf_libra.strategies.Spp(num_microbatches=2, num_stages=2),
        "deeppool": tf_libra.strategies.DeepPool(max_amplification=2.0),
    }

    @tf_libra.optimize(objects.get(strategy, strategy))
    @tf.function
    def step(features: Any, classes: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(classes, model(features, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        rule.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    for number in range(steps):
        order = np.random.default_rng(number).permutation(len(inputs))
        step(tf.constant(inputs[order]), tf.constant(labels[order]))
    step.synchronize_variables()
    weights = [np.asarray(variable) for variable in model.trainable_variables]
    step.close()
    return weights


def _build(keras: Any, network: str, rank: int) -> tuple[Any, np.ndarray, np.ndarray]:
    """Returns a network, and this rank's examples and classes."""
    layers, random = keras.layers, np.random.default_rng(rank)
    labels = random.integers(0, 4, 16).astype(np.int32)
    if network == "embedding":
        shape: tuple[int, ...] = (6,)
        body = [layers.Embedding(50, 8), layers.Flatten(), layers.Dense(32, activation="relu")]
        inputs = random.integers(0, 50, (16, *shape)).astype(np.int32)
    elif network == "convolutional":
        shape = (8, 8, 3)
        body = [layers.Conv2D(8, 3, activation="relu"), layers.Conv2D(8, 3), layers.Flatten()]
        inputs = random.normal(size=(16, *shape)).astype(np.float32)
    else:
        shape = (20,)
        body = [layers.Dense(width, activation="relu") for width in (32, 64, 32)]
        inputs = random.normal(size=(16, *shape)).astype(np.float32)
    first = keras.Input(shape, dtype=inputs.dtype.name)
    return keras.Sequential([first, *body, layers.Dense(4)]), inputs, labels


def main(argv: Sequence[str]) -> int:
    """Compares two trees; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--before", type=Path, required=True, help="the tree to compare with")
    parser.add_argument("--after", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("--np", type=int, default=2, help="number of ranks")
    parser.add_argument("--steps", type=int, default=12)
    flags = parser.parse_args(argv)
    return 0 if compare(flags.before.resolve(), flags.after.resolve(), flags.np, flags.steps) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        train(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        sys.exit(main(sys.argv[1:]))
