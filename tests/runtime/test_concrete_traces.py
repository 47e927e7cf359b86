"""The work at the end of every trace; the tests of jobs check the errors of ranks that differ."""

import re
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import tensorflow as tf

from tests.backends.alone import alone
from tests.capture.traces import INPUTS, Traces, chain, loss_of
from tf_libra import config
from tf_libra.backends.engine import Engine, EngineError
from tf_libra.capture.dataflow import traced_graph
from tf_libra.capture.gradient_registry import ReducedGradient, ReductionPolicy
from tf_libra.capture.instrumented_function import Trace, marked_function
from tf_libra.reporting.run_reporter import RunReporter
from tf_libra.runtime.concrete_traces import Call, ConcreteTraces, KnownTrace


@pytest.fixture
def engine() -> Iterator[Engine]:
    running = alone()
    yield running
    running.close()


def marked(name: str, **others: Any) -> ReducedGradient:
    return ReducedGradient(name=name, shape=(2,), dtype="float32", num_bytes=8, **others)


def trace(*names: str, **others: Any) -> Trace:
    return Trace(tuple(marked(name) for name in names), {}, **others)


class Step:
    """A function whose every trace is added as one that has the requested all-reduces."""

    def __init__(self, control: Engine | None = None) -> None:
        self.traces = ConcreteTraces("train_step")
        self.meetings = 0
        self._control = control
        self._reporter = RunReporter(config.resolve({}))

    def traced(self, one: Trace, is_first: bool = False) -> Any:
        """The new graph."""

        @tf.function(autograph=False)
        def function(inputs: tf.Tensor) -> tf.Tensor:
            self.traces.add(one, self._control, self._reporter, None if is_first else self._meet)
            return inputs

        return function.get_concrete_function(tf.TensorSpec([2]))

    def _meet(self) -> None:
        self.meetings += 1


def test_each_graph_is_known_by_what_it_does() -> None:
    step = Step()
    one, other = trace("a"), trace("a", "b")
    graphs = [step.traced(one), step.traced(other)]
    assert [step.traces.of(graph).trace for graph in graphs] == [one, other]
    assert step.traces.of(graphs[1]).marked == other.marked
    stranger = Step().traced(one)
    with pytest.raises(KeyError):
        step.traces.of(stranger)


def test_ranks_meet_for_what_they_have_not_compared_yet(engine: Engine) -> None:
    step = Step(engine)
    step.traced(trace("a"), is_first=True)
    assert step.meetings == 0
    for one, meetings in (
        (trace("a"), 0),  # another shape of the inputs, and the same gradients
        (trace("a", "b"), 1),
        (trace("b", "a"), 2),  # the order is another
        (trace("a", "b"), 2),
        (Trace((marked("a", is_gathered=True),), {}), 3),
        (trace(), 3),  # an evaluation
    ):
        step.traced(one)
        assert step.meetings == meetings


def test_what_could_not_be_compared_is_compared_again(engine: Engine) -> None:
    step = Step(engine)
    engine.abort("the test ends it")
    for meetings in (1, 2):
        with pytest.raises(EngineError, match="the test ends it"):
            step.traced(trace("a"))
        assert step.meetings == meetings


def test_alone_nobody_is_met() -> None:
    step = Step()
    step.traced(trace("a"))
    step.traced(trace("b"))
    assert step.meetings == 0


IN_DATASET = Trace((marked("a", in_dataset=True), marked("b")), {})


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (trace("a", missing=("spare",)), "train_step computes no gradient for 'spare': it is None"),
        (trace("a", jacobians=("w", "v")), "returns gradients per example of 'w', 'v', of each"),
        (IN_DATASET, "train_step computes gradients in a function of tf.data, .*: 'a' are"),
        (
            trace("a", missing=tuple("uvwxyz")),
            "no gradient for 'u', 'v', 'w', 'x', 'y' and 1 more: it is",
        ),
    ],
)
def test_what_no_plan_is_about_is_said_once(
    one: Trace, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    step = Step()
    for _ in range(2):
        step.traced(one)
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert re.search(said, record.getMessage())


def test_of_a_trace_without_such_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    Step().traced(trace("a", "b"))
    assert caplog.records == []


VALUES = tf.ones([2, 4])


@pytest.fixture(scope="module")
def made() -> tuple[Any, Any, KnownTrace, list[tf.Variable]]:
    """A step with a captured layer, and one that is its argument; and a trace of it."""
    captured, given, other = chain()[:3]

    def step(inputs: tf.Tensor, layer: tf.Variable) -> tf.Tensor:
        layers = [layer, captured]
        with tf.GradientTape() as tape:
            loss = loss_of(layers, inputs)
        for one, gradient in zip(layers, tape.gradient(loss, layers), strict=True):
            one.assign_sub(0.1 * gradient)
        return loss

    traces = Traces()
    function: Any = marked_function(step, traces.add, lambda: ReductionPolicy())
    concrete = function.get_concrete_function(INPUTS, given)
    return function, concrete, KnownTrace(traces.traces[-1]), [captured, given, other]


def call_of(made: Any, *args: Any, **kwargs: Any) -> Call:
    function, concrete, known, _ = made
    return Call.of(known, concrete, *function.called(args), kwargs)


def test_a_call_says_which_variables_it_was_given(made: Any) -> None:
    *_, (captured, given, other) = made
    for layer in (given, other):
        call = call_of(made, VALUES, layer)
        assert call.given == (int(layer.handle._id),)
        assert {id(one.tensor) for one in call.touched()} == {id(captured.handle), id(layer.handle)}
    named = call_of(made, VALUES, layer=other)
    assert named.given == (int(other.handle._id),)


def test_its_graph_is_read_once_for_all_that_is_asked(made: Any) -> None:
    _, concrete, known, (_, given, other) = made
    with mock.patch.object(traced_graph, "read", wraps=traced_graph.read) as read:
        calls = [call_of(made, VALUES, one) for one in (given, other)]
        flows = [known.flow(concrete, call.touched()) for call in calls]
        certain = [known.certain(concrete) for _ in range(2)]
    assert read.call_count == 1
    assert flows[0] is flows[1] and certain[0] is certain[1]


def test_it_says_what_the_trace_does_with_gradients(made: Any) -> None:
    _, _, known, _ = made
    assert len(known.marked) == 2 and known.marked is known.trace.marked
    assert known.left is known.trace.left and not known.left
    assert known.met == set()
