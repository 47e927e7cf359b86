"""Horovod's names are needed where a step all-reduces with Horovod, and nowhere else."""

from typing import Any

import horovod.tensorflow as hvd
import pytest
import tensorflow as tf

from tests.tracing.traces import chain, loss_of, traced

pytestmark = pytest.mark.usefixtures("horovod")


def gradients_of(layers: list[tf.Variable], inputs: tf.Tensor) -> Any:
    with tf.GradientTape() as tape:
        loss = loss_of(layers, inputs)
    return tape.gradient(loss, layers)


PRIVATE = ["_allreduce", "_grouped_allreduce", "_allreduce_cond", "_grouped_allreduce_cond"]


@pytest.mark.parametrize("missing", PRIVATE)
def test_a_step_without_horovod_needs_none_of_its_names(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(hvd, missing)
    layers = chain()
    _, found = traced(lambda inputs: gradients_of(layers, inputs))
    assert len(found) == 4


def test_a_step_that_horovod_averages_in_is_refused_without_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(hvd, "_grouped_allreduce")
    layers = chain()

    def step(inputs: tf.Tensor) -> Any:
        return gradients_of(layers, inputs), hvd.allreduce(tf.reduce_sum(inputs))

    with pytest.raises(ValueError, match=r"step all-reduces with a Horovod that has no _grouped"):
        traced(step)


def test_none_is_neither_forgotten_nor_averaged() -> None:
    layers, unused = chain(), tf.Variable(1.0, name="unused")

    def step(inputs: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(layers, inputs)
        found = tape.gradient(loss, [*layers, unused])
        return [one if one is None else hvd.allreduce(one) for one in found][:4]

    trace, found = traced(step)
    assert sorted(found) == [f"layer{i}" for i in range(4)]
    assert trace.left == {}


def test_none_passes_through_horovods_tape() -> None:
    layers, unused = chain(), tf.Variable(1.0, name="unused")

    def step(inputs: tf.Tensor) -> Any:
        with tf.GradientTape() as plain:
            loss = loss_of(layers, inputs)
        tape = hvd.DistributedGradientTape(plain)
        found = tape.gradient(loss, [*layers, unused])
        assert found[-1] is None
        return found[:-1]

    trace, found = traced(step)
    assert sorted(found) == [f"layer{i}" for i in range(4)]
    assert trace.left == {}
