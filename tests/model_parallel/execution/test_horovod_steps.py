"""Steps that are written for Horovod train in stages, without Horovod's ops."""

from typing import Any

import horovod.tensorflow as hvd
import pytest
import tensorflow as tf

from tests.model_parallel.comparison import assert_close, check_variables, compare
from tests.model_parallel.job import batches, train, train_alone, train_with_layout
from tests.model_parallel.models import EVERY
from tests.model_parallel.trained_model import Trained
from tf_libra.model_parallel.partition.layout import Layout

pytestmark = pytest.mark.usefixtures("cached_models")


class WithHorovodTape(Trained):
    """A step that is written for Horovod; `accumulated` works without Horovod."""

    def step(self, images: Any, labels: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            logits = self.call(images)
            loss = self.loss(labels, logits)
        gradients = self.reduced(tape, loss)
        self.optimizer.apply_gradients(zip(gradients, self.variables, strict=True))
        return {"loss": loss, "logits": logits, "updates": self.optimizer.iterations}

    def reduced(self, tape: Any, loss: Any) -> list[Any]:
        return list(hvd.DistributedGradientTape(tape).gradient(loss, self.variables))


class WithHorovodSum(WithHorovodTape):
    """A step that divides Horovod's sums by the number of ranks, 2."""

    def reduced(self, tape: Any, loss: Any) -> list[Any]:
        tape = hvd.DistributedGradientTape(tape, op=hvd.Sum, sparse_as_dense=True)
        return [gradient / 2 for gradient in tape.gradient(loss, self.variables)]


class WithGroupedAllReduce(WithHorovodTape):
    def reduced(self, tape: Any, loss: Any) -> list[Any]:
        gradients = tape.gradient(loss, self.variables)
        return hvd.grouped_allreduce(gradients, prescale_factor=0.5, postscale_factor=2.0)


@pytest.mark.usefixtures("horovod")
@pytest.mark.parametrize(
    ("kind", "model", "starts", "replicas", "num_groups"),
    [
        (WithHorovodTape, "deep", (0,), (2,), 2),
        (WithHorovodSum, "embedded", (0, 1), (1, 1), 0),
        (WithGroupedAllReduce, "deep", (0, 2), (1, 1), 0),
    ],
)
def test_horovod_reductions_are_replaced(kind, model, starts, replicas, num_groups):
    """Stages average the gradients, and the trace contains no Horovod op."""
    ranks = train(
        lambda: kind(**vars(EVERY[model]())), starts, replicas, 2, batches(2, 24), num_groups
    )
    compare(model, ranks, 2, 24, 2)
    assert not any(op.type.startswith("Horovod") for op in ranks[0].graph.ops)


@pytest.mark.usefixtures("horovod")
@pytest.mark.parametrize(
    ("kind", "model"), [(WithHorovodTape, "deep"), (WithHorovodSum, "embedded")]
)
def test_horovod_reductions_are_those_of_the_joint_batch_on_one_rank(kind, model):
    ranks = train_with_layout(
        lambda: kind(**vars(EVERY[model]())),
        lambda names: Layout.on_one_rank(0, 2),
        2,
        1,
        batches(2, 12),
    )
    expected, alone = train_alone(EVERY[model], 2, 12, 1)
    assert_close(ranks[1].results[-1]["loss"], expected[-1]["loss"])
    check_variables(ranks, alone)
