"""The last rank has fewer batches, and ends right after training; rank 0 goes on by itself."""

import os
from pathlib import Path

import keras
import numpy as np

import tf_libra
import tf_libra.keras
from tests.worker_processes import state, wait_until

FOLDER = Path(os.environ["TF_LIBRA_JOB_FOLDER"])
SECONDS = 120.0


def main() -> None:
    rank = tf_libra.rank()
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    tf_libra.keras.optimize(model, "wfbp", max_tuning_steps=2)
    random = np.random.default_rng(rank)
    inputs, labels = random.normal(size=(48, 6)), random.integers(0, 3, 48)
    count = 48 if rank == 0 else 16
    model.fit(inputs[:count], labels[:count], batch_size=8, epochs=2, verbose=0)
    pid = FOLDER / "pid"
    if rank > 0:
        pid.with_suffix(".new").write_text(str(os.getpid()))
        pid.with_suffix(".new").replace(pid)
        return
    wait_until(pid.exists, SECONDS)
    other = int(pid.read_text())
    wait_until(lambda: state(other) in ("", "Z"), SECONDS)
    loss = model.evaluate(inputs, labels, batch_size=8, verbose=0)
    model.save(FOLDER / "model.keras")
    assert np.isfinite(loss)


main()
