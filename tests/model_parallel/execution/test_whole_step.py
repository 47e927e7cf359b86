"""One rank trains the joint batch to the weights and results of one process."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.model_parallel import models
from tests.model_parallel.job import batches, cached_model, train_alone, train_with_layout
from tf_libra.model_parallel.partition.layout import Layout

MODELS = {
    make.__name__: make
    for make in (
        models.convolutional, models.normalized, models.dropping, models.tied, models.embedded,
        models.two_optimizers, models.spectral, models.counted,
    )
}  # fmt: skip
BATCH, NUM_STEPS = 12, 2


def assert_close(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(actual, expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("model", MODELS)
def test_one_rank_trains_like_one_process(model):
    """Results are equal on all ranks; variables change on the computing rank alone.

    The batch statistics, draws and metrics of these models are those of the joint batch.
    """
    make, computing = MODELS[model], 1
    expected, alone = train_alone(make, NUM_STEPS, BATCH, 1)
    ranks = train_with_layout(
        make, lambda names: Layout.on_one_rank(computing, 3), 3, 1, batches(NUM_STEPS, BATCH)
    )
    for rank in ranks:
        for actual, wanted in zip(rank.results, expected, strict=True):
            assert actual.keys() == wanted.keys()
            for name, value in wanted.items():
                assert_close(actual[name], value)
    values = [[*map(read, rank.trained.every_variable)] for rank in ranks]
    for number, (name, wanted) in enumerate(alone.items()):
        np.testing.assert_allclose(values[1][number], wanted, 2e-4, 2e-5, err_msg=name)
    initial = [read(value) for value in cached_model(make, -1).trained.every_variable]
    for number, value in enumerate(initial):
        np.testing.assert_array_equal(values[0][number], value)
        np.testing.assert_array_equal(values[2][number], value)


def read(value: Any) -> Any:
    return tf.convert_to_tensor(value).numpy()


def test_spans_are_of_the_computing_rank():
    ranks = train_with_layout(
        models.deep, lambda names: Layout.on_one_rank(0, 2), 2, 1, batches(1, BATCH)
    )
    [span] = ranks[0].executor.task_spans
    assert span.kind == "step" and 0 <= span.start_seconds < span.stop_seconds
    assert ranks[1].executor.task_spans == () and ranks[1].executor.stages == ()
