"""The work at the end of every trace; the tests of jobs check the errors of ranks that differ."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow as tf

from tests.backends.alone import alone
from tf_libra import config
from tf_libra.backends.engine import Engine, EngineError
from tf_libra.capture.gradient_registry import ReducedGradient
from tf_libra.capture.instrumented_function import Trace
from tf_libra.reporting.run_reporter import RunReporter
from tf_libra.runtime.concrete_traces import ConcreteTraces


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

    def traced(self, trace: Trace, is_first: bool = False) -> Any:
        """The new graph."""

        @tf.function(autograph=False)
        def function(inputs: tf.Tensor) -> tf.Tensor:
            self.traces.add(trace, self._control, self._reporter, None if is_first else self._meet)
            return inputs

        return function.get_concrete_function(tf.TensorSpec([2]))

    def _meet(self) -> None:
        self.meetings += 1


def test_each_graph_is_known_by_what_it_does() -> None:
    step = Step()
    first, other = trace("a"), trace("a", "b")
    graphs = [step.traced(first), step.traced(other)]
    assert [step.traces.of(graph).trace for graph in graphs] == [first, other]
    assert step.traces.of(graphs[1]).marked == other.reduced
    stranger = Step().traced(first)
    with pytest.raises(KeyError):
        step.traces.of(stranger)


def test_ranks_wait_for_each_other_before_a_new_comparison(engine: Engine) -> None:
    step = Step(engine)
    step.traced(trace("a"), is_first=True)
    assert step.meetings == 0
    for changed, meetings in (
        (trace("a"), 0),  # another shape of the inputs, and the same gradients
        (trace("a", "b"), 1),
        (trace("b", "a"), 2),  # the order is another
        (trace("a", "b"), 2),
        (Trace((marked("a", is_gathered=True),), {}), 3),
        (trace(), 3),  # an evaluation
    ):
        step.traced(changed)
        assert step.meetings == meetings


def test_failed_comparison_is_repeated(engine: Engine) -> None:
    step = Step(engine)
    engine.abort("the test ends it")
    for meetings in (1, 2):
        with pytest.raises(EngineError, match="the test ends it"):
            step.traced(trace("a"))
        assert step.meetings == meetings


def test_single_process_does_not_wait() -> None:
    step = Step()
    step.traced(trace("a"))
    step.traced(trace("b"))
    assert step.meetings == 0


IN_DATASET = Trace((marked("a", in_dataset=True), marked("b")), {})


@pytest.mark.parametrize(
    ("unplanned", "said"),
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
def test_unplanned_gradients_are_logged_once(
    unplanned: Trace, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    step = Step()
    for _ in range(2):
        step.traced(unplanned)
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert re.search(said, record.getMessage())


def test_trace_with_planned_gradients_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    Step().traced(trace("a", "b"))
    assert caplog.records == []
