"""Calls that are bound to traces, and facts that are read once from the graph of a trace."""

from typing import Any
from unittest import mock

import pytest
import tensorflow as tf

from tests.capture.traces import INPUTS, Traces, chain, loss_of
from tf_libra.capture.dataflow import traced_graph
from tf_libra.capture.gradient_registry import ReductionPolicy
from tf_libra.capture.instrumented_function import InstrumentedFunction, Trace
from tf_libra.coordination.horovod_job import HorovodJob
from tf_libra.coordination.mwms_job import MultiWorkerJob, WorkerAddresses
from tf_libra.runtime.concrete_traces import KnownTrace
from tf_libra.runtime.step_tracer import StepCall, check_trains

VALUES = tf.ones([2, 4])


@pytest.fixture(scope="module")
def made() -> tuple[Any, Any, KnownTrace, list[tf.Variable]]:
    """A step with a captured layer, and one that is its argument; and a trace of it."""
    captured, given, other = chain()[:3]

    def step(inputs: tf.Tensor, layer: tf.Variable) -> tf.Tensor:
        layers = [layer, captured]
        with tf.GradientTape() as tape:
            loss = loss_of(layers, inputs)
        for variable, gradient in zip(layers, tape.gradient(loss, layers), strict=True):
            variable.assign_sub(0.1 * gradient)
        return loss

    traces = Traces()
    function: Any = InstrumentedFunction(step, traces.add, lambda: ReductionPolicy())
    concrete = function.get_concrete_function(INPUTS, given)
    return function, concrete, KnownTrace(traces.traces[-1]), [captured, given, other]


def call_of(made: Any, *args: Any, **kwargs: Any) -> StepCall:
    function, concrete, known, _ = made
    return StepCall.bind(known, concrete, function, args, kwargs)


def test_call_lists_the_variables_among_its_arguments(made: Any) -> None:
    *_, (captured, given, other) = made
    for layer in (given, other):
        call = call_of(made, VALUES, layer)
        assert call.passed_variables == (int(layer.handle._id),)
        assert {id(touched.tensor) for touched in call.touched()} == {
            id(captured.handle),
            id(layer.handle),
        }
    named = call_of(made, VALUES, layer=other)
    assert named.passed_variables == (int(other.handle._id),)


def test_graph_of_a_trace_is_read_once(made: Any) -> None:
    _, concrete, known, (_, given, other) = made
    with mock.patch.object(traced_graph, "read", wraps=traced_graph.read) as read:
        calls = [call_of(made, VALUES, weight) for weight in (given, other)]
        flows = [known.flow(concrete, call.touched()) for call in calls]
        certain = [known.certain(concrete) for _ in range(2)]
    assert read.call_count == 1
    assert flows[0] is flows[1] and certain[0] is certain[1]


def test_known_trace_has_the_gradients_of_its_trace(made: Any) -> None:
    _, _, known, _ = made
    assert len(known.marked) == 2 and known.marked is known.trace.reduced
    assert known.left is known.trace.left and not known.left
    assert known.compared == set()


def untrained(**others: Any) -> StepCall:
    """Returns a call whose trace averages nothing."""
    return StepCall(KnownTrace(Trace((), {}, **others)), None, lambda: None, [])


@pytest.mark.parametrize(
    ("call", "facts"),
    [
        (untrained(), ["train_step", "tf.GradientTape"]),
        (untrained(gradients_per_example=("w0",)), ["train_step", "'w0'", "hvd.allreduce"]),
    ],
)
def test_step_without_gradients_is_rejected(call: StepCall, facts: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        check_trains(call, "train_step", HorovodJob())
    assert all(fact in str(caught.value) for fact in facts)


def test_step_that_a_strategy_does_not_reduce_is_rejected() -> None:
    job = MultiWorkerJob(WorkerAddresses((("worker", 0, "host:1"),), 0))
    with pytest.raises(ValueError, match=r"strategy\.run"):
        check_trains(untrained(), "train_step", job)


def test_gradients_that_others_reduce_are_enough() -> None:
    call = StepCall(KnownTrace(Trace((), {"w0": "by Horovod"})), None, lambda: None, [])
    check_trains(call, "train_step", HorovodJob())
