"""Steps that take turns, on one process."""

from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.jobs import rounds


def test_rank_0_alone_takes_the_step_on_the_batches_of_all_ranks() -> None:
    called: list[Any] = []

    def step(inputs: Any, labels: Any) -> tf.Tensor:
        called.append((inputs, labels))
        return tf.constant(1.0)

    batch = (tf.constant([[1.0], [2.0]]), {"labels": tf.constant([3, 4])})
    steps = [rounds.on_joint_batch(step, batch, rank, 3) for rank in range(3)]
    for other in steps[1:]:
        assert np.isfinite(other(*batch).numpy())
    assert called == []
    assert steps[0](*batch).numpy() == 1.0
    [(inputs, labels)] = called
    assert inputs.numpy().tolist() == [[1.0], [2.0]] * 3
    assert labels["labels"].numpy().tolist() == [3, 4] * 3
