"""Results of each rank's own examples, from steps of the joint batch."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.model_parallel import models
from tests.model_parallel.job import (
    batches,
    make_burst_plan,
    make_plan,
    metrics_alone,
    train_alone,
    train_with_layout,
)
from tests.model_parallel.trained_model import Trained
from tf_libra.model_parallel.partition.layout import Layout

BATCH, NUM_STEPS = 12, 2


def pipeline(names: Sequence[str]) -> Layout:
    return Layout.from_pipeline_plan(make_plan(names, [0, 1], [1, 1], 2))


def bursts(names: Sequence[str]) -> Layout:
    return Layout.from_burst_plan(make_burst_plan(names, (2, 1), 2), 2)


LAYOUTS = {
    "one rank": (lambda names: Layout.on_one_rank(1, 2), 1),
    "pipeline": (pipeline, 2),
    "bursts": (bursts, 1),
}


def read(value: Any) -> Any:
    return tf.convert_to_tensor(value).numpy()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model", ["counted", "greatest", "mixed", "convolutional", "checked"])
def test_metrics_accumulate_the_examples_of_their_rank(model: str, layout: str) -> None:
    """Also a metric of results of the update, and one whose result depends on a microbatch."""
    make, (make_layout, num_microbatches) = getattr(models, model), LAYOUTS[layout]
    expected, _ = train_alone(make, NUM_STEPS, BATCH, 1)
    ranks = train_with_layout(
        make,
        make_layout,
        2,
        num_microbatches,
        batches(NUM_STEPS, BATCH),
        has_own_results=True,
    )
    for number, rank in enumerate(ranks):
        results, variables = metrics_alone(make, NUM_STEPS, BATCH, number, 2)
        for actual, wanted, metric in zip(rank.results, expected, results, strict=True):
            assert actual.keys() == wanted.keys()
            np.testing.assert_allclose(actual["metric"], metric, 2e-4, 2e-5)
            if "norms" in wanted:
                np.testing.assert_allclose(actual["norms"], wanted["norms"], 2e-4, 2e-5)
        found = map(read, getattr(rank.trained.metric, "variables", ()))
        for value, wanted in zip(found, variables, strict=True):
            np.testing.assert_allclose(value, wanted, 2e-4, 2e-5)
        losses = [float(result["loss"]) for result in rank.results]
        assert losses != [float(result["loss"]) for result in expected]
    means = np.mean([[float(r["loss"]) for r in rank.results] for rank in ranks], axis=0)
    np.testing.assert_allclose(means, [float(r["loss"]) for r in expected], 1e-3)


def test_metric_that_influences_weights_is_rejected() -> None:
    def make() -> Trained:
        trained = models.mlp()
        metric = trained.metric

        def loss(labels: Any, logits: Any) -> Any:
            return trained.loss(labels, logits) * (1 + metric.result())

        return dataclasses.replace(trained, loss=loss)

    with pytest.raises(ValueError, match="takes the state of a metric"):
        train_with_layout(
            make, LAYOUTS["one rank"][0], 2, 1, batches(1, BATCH), has_own_results=True
        )
