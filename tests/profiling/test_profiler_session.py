"""Traces of real steps by TensorFlow's profiler."""

import dataclasses
import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.eager import context

from tf_libra.profiling.events import Events
from tf_libra.profiling.executed_graph import GradientSources, GraphCapture, gradient_sources
from tf_libra.profiling.gradient_timing import measured_profile, production_times, step_production
from tf_libra.profiling.profiler_session import TraceSession, find_profiler_conflict, read_events


def model() -> keras.Model:
    return keras.Sequential(
        [
            keras.layers.Input((16, 16, 3)),
            keras.layers.Conv2D(8, 3, padding="same", activation="relu", name="conv_a"),
            keras.layers.MaxPool2D(),
            keras.layers.Conv2D(8, 3, padding="same", activation="relu", name="conv_b"),
            keras.layers.BatchNormalization(name="norm"),
            keras.layers.Flatten(),
            keras.layers.Dense(32, activation="relu", name="dense_a"),
            keras.layers.Dense(10, name="dense_b"),
        ]
    )


def mark(gradients: list[tf.Tensor], variables: list[keras.Variable]) -> list[tf.Tensor]:
    """Gives each gradient a node in backward order, as all-reduces do."""
    return [
        tf.raw_ops.EnsureShape(input=g, shape=g.shape, name=f"mark/{v.path.replace('/', '.')}")
        for g, v in zip(gradients[::-1], variables[::-1], strict=True)
    ][::-1]


def hand_written_step() -> tuple[Callable[[], object], list[str]]:
    network = model()
    optimizer = keras.optimizers.SGD(0.01)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    images, labels = batch()
    variables = network.trainable_variables

    @tf.function
    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            value = loss(labels, network(images, training=True))
        gradients = mark(tape.gradient(value, variables), variables)
        # Like a plan that communicates after backward: no update before all is produced.
        with tf.control_dependencies(gradients):
            gradients = [tf.identity(g) for g in gradients]
        optimizer.apply(gradients, variables)
        return value

    return lambda: step(images, labels).numpy(), [v.path.replace("/", ".") for v in variables]


def keras_fit_step() -> tuple[Callable[[], object], list[str]]:
    network = model()
    variables = network.trainable_variables

    class Marking(keras.optimizers.SGD):
        def apply_gradients(self, grads_and_vars):
            gradients, trained = zip(*grads_and_vars, strict=True)
            gradients = mark(list(gradients), list(trained))
            return super().apply_gradients(list(zip(gradients, trained, strict=True)))

    network.compile(Marking(0.01), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    images, labels = batch()
    dataset = tf.data.Dataset.from_tensors((images, labels))
    run = lambda: network.fit(dataset, verbose=0)  # noqa: E731
    return run, [v.path.replace("/", ".") for v in variables]


def batch() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return (
        random.standard_normal((8, 16, 16, 3)).astype(np.float32),
        random.integers(0, 10, 8).astype(np.int32),
    )


def sources_of_marks(graphs: tuple) -> GradientSources:
    """Returns the producers that `gradient_sources` would find if marks were all-reduces."""
    for graph in graphs:
        for node in graph.node:
            if node.op == "EnsureShape" and "mark/" in node.name:
                node.op = "LibraAllReduce"
                name = node.name.rpartition("mark/")[2].encode()
                names = attr_value_pb2.AttrValue.ListValue(s=[name])
                node.attr["tensor_names"].list.CopyFrom(names)
    return gradient_sources(graphs)


@dataclasses.dataclass(frozen=True)
class Traced:
    variables: list[str]
    sources: GradientSources
    steps: list[tuple[Events, tuple[int, int]]]

    @property
    def producers(self) -> dict[str, str]:
        return {name: node for name, (node,) in self.sources.producers.items()}


@pytest.fixture(scope="module", params=[hand_written_step, keras_fit_step])
def traced(request: pytest.FixtureRequest) -> Traced:
    run, variables = request.param()
    with GraphCapture() as capture:
        run()
    assert not capture.unavailable
    steps = []
    for _ in range(3):
        with TraceSession() as session:
            start_ns = time.time_ns()
            run()
            stop_ns = time.time_ns()
        assert session.trace is not None, session.unavailable
        steps.append((read_events(session.trace), (start_ns, stop_ns)))
    return Traced(variables, sources_of_marks(capture.graphs), steps)


def test_every_gradient_has_a_producer_in_the_executed_graph(traced: Traced) -> None:
    assert sorted(traced.producers) == sorted(traced.variables)
    assert traced.producers.keys() == set(traced.variables)
    assert all(node in traced.sources.inputs for node in traced.producers.values())


def test_every_traced_op_is_a_node_of_the_executed_graph(traced: Traced) -> None:
    backward = [
        name
        for events, window in traced.steps
        for name in {events.node_names[i] for i in events.within(window).node}
        if "gradient_tape/" in name
    ]
    assert backward
    assert set(backward) <= traced.sources.inputs.keys()


def test_producers_of_weights_are_seen_directly(traced: Traced) -> None:
    for events, window in traced.steps:
        found = production_times(events, traced.producers, window, traced.sources.inputs)
        kernels = [name for name in found.names if name.endswith("kernel")]
        assert len(kernels) == 4
        assert not set(kernels) & found.inferred.keys()
        # Batch normalisation's gradients may end in a Reshape, which is not traced.
        assert all("ancestor" in reason for reason in found.inferred.values())
        assert ((window[0] < found.produced_ns) & (found.produced_ns < window[1])).all()


def test_productions_come_after_what_they_depend_on(traced: Traced) -> None:
    begins_after_forward = []
    for events, window in traced.steps:
        step = step_production(events, traced.producers, window, traced.sources.inputs)
        inside = events.within(window)
        starts = dict(
            zip((events.node_names[i] for i in inside.node), inside.start_ns, strict=True)
        )
        ends = dict(zip((events.node_names[i] for i in inside.node), inside.end_ns, strict=True))
        for node in traced.producers.values():
            for source in traced.sources.inputs[node]:
                if node in starts and source in ends:
                    assert ends[source] <= starts[node]
        # The activations' gradient passes every layer above before it gets to conv_a.
        (relu,) = (n for n in ends if "gradient_tape/" in n and "conv_b" in n and "ReluGrad" in n)
        (at,) = (i for i, name in enumerate(step.names) if name.endswith("conv_a.kernel"))
        assert ends[relu] < step.produced_ns[at]
        forward = [n for n in ends if "gradient_tape/" not in n and "conv" in n and "Relu" in n]
        assert len(forward) == 2
        begins_after_forward.append(
            step.backward_start_ns < ends[relu]
            and all(ends[name] <= step.backward_start_ns for name in forward)
        )
    # An op of the forward pass that was interrupted for long would move it in one of them.
    assert sum(begins_after_forward) > len(traced.steps) / 2


def test_profile_accounts_for_all_of_backward(traced: Traced) -> None:
    steps = [
        step_production(events, traced.producers, window, traced.sources.inputs)
        for events, window in traced.steps
    ]
    measured = measured_profile(steps, dict.fromkeys(steps[0].names, 4))
    assert sorted(measured.profile.names) == sorted(traced.variables)
    assert measured.num_steps + len(measured.dropped) == 3
    offsets = np.stack([step.offset_seconds for step in steps])
    total = measured.profile.compute_seconds.sum()
    assert total == pytest.approx(np.median(offsets, axis=0).max())
    # What is summed up holds at least the convolutions' own time, in the fastest step.
    own = []
    for events, window in traced.steps:
        inside = events.within(window)
        nodes = [events.node_names[i] for i in inside.node]
        own.append(
            sum(
                end - start
                for name, start, end in zip(nodes, inside.start_ns, inside.end_ns, strict=True)
                if "gradient_tape/" in name and "conv_a" in name and "Filter" in name
            )
        )
    assert total >= min(own) * 1e-9


def test_times_are_wall_clock_times() -> None:
    function = tf.function(lambda x: tf.linalg.matmul(x, x, name="square"))
    x = tf.ones((64, 64))
    function(x)
    with TraceSession() as session:
        times = []
        for _ in range(5):
            times.append(time.time_ns())
            function(x).numpy()
        times.append(time.time_ns())
    events = read_events(session.trace)
    square = [i for i, name in enumerate(events.node_names) if name.endswith("square")]
    for window in itertools.pairwise(times):
        inside = events.within(window)
        assert np.isin(inside.node, square).sum() == 1
    assert (events.end_ns >= events.start_ns).all()


def test_ops_of_other_threads_are_seen_and_other_events_are_not() -> None:
    function = tf.function(lambda x: tf.data.Dataset.range(3).map(lambda i: i * 2).reduce(x, max_))
    with TraceSession() as session:
        function(tf.constant(0, tf.int64)).numpy()
    events = read_events(session.trace)
    assert len(events) > 0
    assert all(name and "::" not in name for name in {events.node_names[i] for i in events.node})


def max_(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    return tf.maximum(a, b)


@tf.function
def add_one(x: tf.Tensor) -> tf.Tensor:
    return x + 1


def test_a_users_session_survives_ours(tmp_path: Path) -> None:
    tf.profiler.experimental.start(str(tmp_path))
    with TraceSession() as session:
        add_one(tf.ones(()))
    assert session.trace is None
    assert session.unavailable.startswith("busy")
    tf.profiler.experimental.stop()
    (written,) = tmp_path.rglob("*.xplane.pb")
    assert b"AddV2" in written.read_bytes()
    with TraceSession() as session:
        pass
    assert session.trace is not None


def test_an_error_in_the_step_passes_and_ends_the_session() -> None:
    with pytest.raises(ZeroDivisionError), TraceSession() as session:
        raise ZeroDivisionError
    assert session.trace is not None
    with TraceSession() as session:
        pass
    assert session.unavailable == ""


def test_events_without_clock_are_rejected() -> None:
    with pytest.raises(ValueError, match="not a serialized profiler trace"):
        read_events(b"\xff\xff\xff")
    with pytest.raises(ValueError, match="record it with TraceSession"):
        read_events(b"")


def test_a_users_graph_collection_survives_ours() -> None:
    tf.summary.trace_on(graph=True)
    function = tf.function(lambda x: x * 3)
    with GraphCapture() as capture:
        function(1.0)
    assert capture.graphs == ()
    assert capture.unavailable.startswith("busy")
    assert context.context().export_run_metadata().function_graphs
    tf.summary.trace_off()


def test_earlier_user_graphs_are_not_captured() -> None:
    tf.summary.trace_on(graph=True)
    tf.function(lambda x: x * 3)(1.0)
    tf.summary.trace_off()
    tf.function(lambda x: x * 4)(1.0)  # TensorFlow collects it still
    with GraphCapture() as capture:
        tf.function(lambda x: x * 5)(1.0)
    assert len(capture.graphs) == 1
    tf.function(lambda x: x * 6)(1.0)
    assert not context.context().export_run_metadata().function_graphs


def test_sources_are_what_feeds_all_reduces() -> None:
    graph = tf.compat.v1.GraphDef()
    with pytest.raises(ValueError, match="must hold an all-reduce"):
        gradient_sources([graph])
    for name in ("one", "two"):
        node = graph.node.add(name=name, op="LibraAllReduce")
        node.input.extend(["g:1", "h", "^i"])
        node.attr["tensor_names"].list.s.extend([b"a", b"b"])
        if name == "one":
            sources = gradient_sources([tf.compat.v1.GraphDef(), graph])
            assert sources.producers == {"a": ("g",), "b": ("h",)}
            assert sources.inputs == {"one": ("g", "h")}
    assert gradient_sources([graph]).producers == {"a": ("g", "g"), "b": ("h", "h")}
    graph.node[0].attr["part_starts"].list.i.extend([0, -1])
    graph.node[1].attr["part_starts"].list.i.extend([8, -1])
    assert gradient_sources([graph]).producers == {"a": ("g",), "b": ("h", "h")}


def test_profiler_conflict_is_found_without_a_session(tmp_path: Path) -> None:
    assert find_profiler_conflict() == ""
    with TraceSession():
        assert "profiler session" in find_profiler_conflict()
    with tf.profiler.experimental.Profile(str(tmp_path)):
        assert "profiler session" in find_profiler_conflict()
    assert find_profiler_conflict() == ""
    tf.summary.trace_on(graph=True, profiler=False)
    try:
        assert "trace_on" in find_profiler_conflict()
    finally:
        tf.summary.trace_off()
    assert find_profiler_conflict() == ""


@pytest.mark.parametrize("in_thread", [False, True])
def test_a_session_that_starts_while_ours_runs_gets_its_profile(
    in_thread: bool, tmp_path: Path
) -> None:
    step, _ = hand_written_step()
    step()

    def start() -> None:
        tf.profiler.experimental.start(str(tmp_path))

    with TraceSession() as session:
        step()
        if in_thread:
            thread = threading.Thread(target=start)
            thread.start()
            thread.join()
        else:
            start()
        step()
    assert session.trace is None and session.is_interrupted
    assert "another profiler session is active" in session.unavailable
    step()
    tf.profiler.experimental.stop()
    assert len(list(tmp_path.rglob("*.xplane.pb"))) == 1
    with TraceSession() as session:
        step()
    assert session.trace is not None and not session.is_interrupted


def test_an_active_session_is_left_alone_and_named(tmp_path: Path) -> None:
    with tf.profiler.experimental.Profile(str(tmp_path)), TraceSession() as session:
        pass
    assert session.trace is None and session.is_interrupted
    assert len(list(tmp_path.rglob("*.xplane.pb"))) == 1
