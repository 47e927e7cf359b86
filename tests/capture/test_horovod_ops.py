"""Horovod's names are needed where a step all-reduces with Horovod, and nowhere else."""

from collections.abc import Callable
from typing import Any

import horovod.tensorflow as hvd
import pytest
import tensorflow as tf

from tests.capture.traces import INPUTS, Traces, all_reduces, chain, loss_of, traced
from tf_libra.capture.instrumented_function import InstrumentedFunction

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


def test_a_step_that_horovod_averages_in_is_rejected_without_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(hvd, "_grouped_allreduce")
    layers = chain()

    def step(inputs: tf.Tensor) -> Any:
        return gradients_of(layers, inputs), hvd.allreduce(tf.reduce_sum(inputs))

    with pytest.raises(ValueError, match=r"step .* Horovod .*_grouped"):
        traced(step)


def test_none_is_neither_forgotten_nor_averaged() -> None:
    layers, unused = chain(), tf.Variable(1.0, name="unused")

    def step(inputs: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(layers, inputs)
        found = tape.gradient(loss, [*layers, unused])
        return [gradient if gradient is None else hvd.allreduce(gradient) for gradient in found][:4]

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


# Steps that average with Horovod if a flag of Python's says so.


def by_tape(layers: list[tf.Variable], inputs: tf.Tensor, averages: bool) -> Any:
    with tf.GradientTape() as tape:
        loss = loss_of(layers, inputs)
    return (hvd.DistributedGradientTape(tape) if averages else tape).gradient(loss, layers)


def by_hand(layers: list[tf.Variable], inputs: tf.Tensor, averages: bool) -> Any:
    found = gradients_of(layers, inputs)
    return [hvd.allreduce(gradient) for gradient in found] if averages else found


def by_optimizer(layers: list[tf.Variable], inputs: tf.Tensor, averages: bool) -> Any:
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    if averages:
        optimizer = hvd.DistributedOptimizer(optimizer)
    found = optimizer.compute_gradients(lambda: loss_of(layers, inputs), layers)
    return [gradient for gradient, _ in found]


def in_a_function(layers: list[tf.Variable], inputs: tf.Tensor, averages: bool) -> Any:
    return tf.function(lambda given: by_tape(layers, given, averages))(inputs)


WAYS = [by_tape, by_hand, by_optimizer, in_a_function]


class Flagged:
    """A step with a flag that is an argument, or an attribute when a new shape is traced."""

    def __init__(self, way: Callable[..., Any], flag: str, update: str = "weights") -> None:
        self.layers, self.traces = chain(), Traces()
        self.sums = [tf.Variable(tf.zeros([4, 4])) for _ in self.layers]
        self.averages, self.rows = False, 2
        self._way, self._flag, self._update = way, flag, update
        self.call = InstrumentedFunction(tf.function(self._step), self.traces.add)

    def _step(self, inputs: tf.Tensor, averages: bool | None) -> None:
        found = self._way(self.layers, inputs, self.averages if averages is None else averages)
        written = self.sums if self._update == "sums" else self.layers
        for target, gradient in zip(written, found, strict=True):
            target.assign_sub(gradient)

    def trace(self, averages: bool) -> list[str]:
        """Trace the step; what its graph all-reduces."""
        if self._flag == "argument":
            return all_reduces(self.call.get_concrete_function(INPUTS, averages))
        self.averages, self.rows = averages, self.rows + 1
        return all_reduces(self.call.get_concrete_function(tf.TensorSpec([self.rows, 4]), None))


@pytest.mark.parametrize("flag", ["argument", "attribute"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_gradients_that_another_trace_averages_stay_local(
    way: Callable[..., Any], flag: str
) -> None:
    names = [f"layer{i}" for i in range(4)]
    step = Flagged(way, flag)
    assert sorted(step.trace(averages=True)) == names
    assert step.trace(averages=False) == []
    assert sorted(step.traces.traces[-1].local) == names
    assert step.traces.traces[-1].has_no_gradients
    assert sorted(step.trace(averages=True)) == names


@pytest.mark.parametrize("flag", ["argument", "attribute"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_gradients_that_have_trained_averaged_are_rejected_when_horovod_averages(
    way: Callable[..., Any], flag: str
) -> None:
    step = Flagged(way, flag)
    assert len(step.trace(averages=False)) == 4  # as in any script without Horovod's averages
    with pytest.raises(ValueError, match=r"'layer\d'.*Horovod"):
        step.trace(averages=True)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_sums_of_averages_are_averaged_as_sums_of_what_is_local(way: Callable[..., Any]) -> None:
    step = Flagged(way, "argument", update="sums")
    assert len(step.trace(averages=False)) == 4
    assert len(step.trace(averages=True)) == 4
    assert step.trace(averages=False) == []  # known by now


def test_other_variables_of_the_function_are_averaged_in_all_traces() -> None:
    others, layers = [tf.Variable(tf.ones([4, 4])) for _ in range(4)], chain()

    def step(inputs: tf.Tensor, averages: bool) -> Any:
        return by_tape(layers, inputs, averages), gradients_of(others, inputs)

    traces = Traces()
    call = InstrumentedFunction(tf.function(step), traces.add)
    for averages, count in ((True, 8), (False, 4), (True, 8)):
        assert len(all_reduces(call.get_concrete_function(INPUTS, averages))) == count


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_gradients_that_were_returned_averaged_are_rejected_when_horovod_averages(
    way: Callable[..., Any],
) -> None:
    layers, traces = chain(), Traces()
    call = InstrumentedFunction(tf.function(lambda *args: way(layers, *args)), traces.add)
    call.get_concrete_function(INPUTS, False)
    with pytest.raises(ValueError, match=r"an earlier trace.*or returned it"):
        call.get_concrete_function(INPUTS, True)


def test_evaluation_that_takes_no_gradient_is_neither_local_nor_averaged() -> None:
    layers, traces = chain(), Traces()

    def step(inputs: tf.Tensor, training: bool) -> Any:
        return by_tape(layers, inputs, True) if training else loss_of(layers, inputs)

    call = InstrumentedFunction(tf.function(step), traces.add)
    for training in (True, False):
        call.get_concrete_function(INPUTS, training)
    assert traces.traces[-1].has_no_gradients
    assert traces.traces[-1].local == ()


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_variables_that_are_arguments_are_known_in_all_traces(way: Callable[..., Any]) -> None:
    layers, traces = chain(), Traces()
    call = InstrumentedFunction(tf.function(way), traces.add)
    for averages, count in ((True, 4), (False, 0)):
        concrete = call.get_concrete_function(layers, INPUTS, averages)
        assert len(all_reduces(concrete)) == count
    assert len(traces.traces[-1].local) == 4
    call = InstrumentedFunction(tf.function(way), Traces().add)
    call.get_concrete_function(layers, INPUTS, False)
    with pytest.raises(ValueError, match=r"Horovod"):
        call.get_concrete_function(layers, INPUTS, True)
