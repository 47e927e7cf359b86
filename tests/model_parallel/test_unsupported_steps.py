"""Steps, arguments and options that stages do not support raise before anything runs."""

import contextlib
from typing import Any

import pytest
import tensorflow as tf

import tf_libra
from tests.model_parallel.job import batches, make_plan, trace
from tests.model_parallel.unsupported_steps import (
    adversarial,
    apply,
    boundary_in_a_function,
    complex_weight,
    conditional_print,
    forward,
    input_gradient,
    jacobian,
    loss_after_the_update,
    loss_in_update,
    metric_of_loss_and_gradients,
    no_gradient,
    norm_after_the_update,
    other_ops_by_batch_size,
    print_after_update,
    reduced_by_horovod,
    supported,
    two_losses,
    unknown_shape,
    weights,
)
from tf_libra.model_parallel.capture.batch_axes import BatchAxes
from tf_libra.model_parallel.capture.step_arguments import batch_size, convert_arguments
from tf_libra.model_parallel.capture.step_recorder import StepRecorder
from tf_libra.model_parallel.partition.layout import Layout
from tf_libra.model_parallel.partition.resharding import check_resharding
from tf_libra.model_parallel.partition.sized_traces import SizedTraces
from tf_libra.model_parallel.partition.stage_partition import StagePartition
from tf_libra.model_parallel.partition.update_phase import UpdatePhase
from tf_libra.model_parallel.runtime.pipeline_planner import plan_for
from tf_libra.strategies import GPipe, Spp

IMAGES, LABELS = batches(1, 8)[0]


def analyze(step: Any) -> None:
    """Traces a step and divides it into one stage per layer."""
    graph = trace(StepRecorder(tf.function(step)), IMAGES, LABELS, 8)
    UpdatePhase(StagePartition(graph, range(len(graph.layers))))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (two_losses, r"GradientTape\.gradient more than once"),
        (adversarial, r"GradientTape\.gradient more than once"),
        (unknown_shape, r"shape \(None, 64\) is not static"),
        (input_gradient, "with respect to"),
        (complex_weight, "'phase' has dtype complex64"),
        (jacobian, "jacobian"),
        (boundary_in_a_function, r"tf_libra\.boundary"),
        (conditional_print, "'weight0'"),
        (loss_in_update, "Assign.* takes (?!Assign)"),
        (print_after_update, "Print.* takes "),
        (loss_after_the_update, "images depends on"),
        (norm_after_the_update, "'weight0' .* before apply_gradients"),
        (metric_of_loss_and_gradients, "metric 'both'"),
        (no_gradient, "computes no gradient"),
    ],
)
def test_step_that_stages_cannot_run_raises(make, message):
    with pytest.raises(ValueError, match=message):
        analyze(make())


@pytest.mark.usefixtures("horovod")
@pytest.mark.parametrize(
    ("reduction", "message"),
    [
        ("clipped", r"'weight.' with Horovod \(modified"),
        ("compressed", r"'weight.' with Horovod \(compressed to float16\)"),
        ("greatest", r"'weight.' with Horovod \(op=Max\)"),
        ("local", "'weight1'.* register_local_source"),
        ("loss", "HorovodAllreduce"),
    ],
)
def test_horovod_reduction_that_stages_cannot_replace_raises(reduction: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        analyze(reduced_by_horovod(reduction))


def test_step_with_other_ops_for_another_batch_size_raises():
    recorder = StepRecorder(tf.function(other_ops_by_batch_size()))
    graphs = [trace(recorder, IMAGES, LABELS, size) for size in (8, 16)]
    with pytest.raises(ValueError, match=r"computes.*8.*16"):
        BatchAxes(graphs[0], 8, graphs[1], 16)


RETURNED = {
    "batch_size": lambda size, loss, weight: size,
    "weights": lambda size, loss, weight: weight / tf.cast(size, tf.float32),
    "examples": lambda size, loss, weight: loss * tf.cast(size, tf.float32),
    "constant": lambda size, loss, weight: 2.0 + tf.zeros([3]),
}


@pytest.mark.parametrize("returned", RETURNED)
def test_result_computed_from_batch_size_without_examples_raises(returned):
    """The batch size would be that of a microbatch."""
    variables = weights()
    is_rejected = returned in ("batch_size", "weights")

    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = forward(variables, images)
        apply(variables, tape.gradient(loss, variables))
        return RETURNED[returned](tf.shape(images)[0], loss, variables[0])

    traces = SizedTraces(StepRecorder(tf.function(step)), ((IMAGES, LABELS), {}), 8, 8)
    with contextlib.ExitStack() as stack:
        if is_rejected:
            stack.enter_context(pytest.raises(ValueError, match="depends on the batch size"))
        traces.check_update()


def test_boundary_of_integers_raises():
    variables = weights()

    def step(images: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            scale = tf.cast(tf_libra.boundary(labels), tf.float32)
            loss = forward(variables, images * scale[:, None, None, None])
        apply(variables, tape.gradient(loss, variables))

    with pytest.raises(ValueError, match=r"boundary .*int32"):
        StepRecorder(tf.function(step)).record((IMAGES, LABELS), {})


@pytest.mark.parametrize("counts", [True, False])
def test_update_that_counts_examples_raises(counts):
    """A stage sees a microbatch. The division of a sum's gradients by its size is supported."""
    variables, seen = weights(), tf.Variable(0, name="seen")

    def step(images: tf.Tensor, labels: tf.Tensor) -> None:
        size = tf.shape(images)[0]
        with tf.GradientTape() as tape:
            loss = forward(variables, images) * tf.cast(size, tf.float32)
        if counts:
            seen.assign_add(size)
        gradients = tape.gradient(loss, variables)
        apply(variables, [grad / tf.cast(size, tf.float32) for grad in gradients])

    traces = SizedTraces(StepRecorder(tf.function(step)), ((IMAGES, LABELS), {}), 8, 8)
    with contextlib.ExitStack() as stack:
        if counts:
            stack.enter_context(pytest.raises(ValueError, match="'seen'"))
        traces.check_update()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((IMAGES, LABELS[:3]), r"number of examples.* got \[3, 8\]"),
        ((tf.constant(1.0),), r"number of examples.* got \[\]"),
        ((IMAGES[:0],), r"number of examples.* got \[0\]"),
        ((IMAGES, tf.Variable(1.0)), "type ResourceVariable"),
        ((iter([IMAGES]),), "type list_iterator"),
        ((IMAGES, {1}), "type set"),
    ],
)
def test_arguments_without_a_common_batch_size_raise(arguments, message):
    with pytest.raises(ValueError, match=message):
        batch_size("train_step", convert_arguments("train_step", arguments))


@pytest.mark.parametrize("is_used", [True, False])
def test_string_examples_raise_if_the_step_uses_them(is_used: bool) -> None:
    variables = weights()

    def step(images: tf.Tensor, names: tf.Tensor) -> None:
        lengths = tf.cast(tf.strings.length(names), tf.float32)
        with tf.GradientTape() as tape:
            loss = forward(variables, images) * (tf.reduce_mean(lengths) if is_used else 1.0)
        apply(variables, tape.gradient(loss, variables))

    with contextlib.ExitStack() as stack:
        if is_used:
            stack.enter_context(pytest.raises(ValueError, match=r"'names' .*string"))
        SizedTraces(StepRecorder(tf.function(step)), ((IMAGES, tf.fill([8], "name")), {}), 8, 8)


def test_plan_that_leaves_a_rank_without_a_stage_raises():
    """GPipe has one stage per layer if there are fewer layers than devices."""
    layers = tf_libra.LayerGraph.chain([1, 1], [1, 1], [1, 1], [1])
    cluster = tf_libra.Cluster.from_bandwidth([[0, 1, 1], [1, 0, 1], [1, 1, 0]])
    with pytest.raises(ValueError, match=r"gpipe .*ranks \[2\]"):
        plan_for(layers, cluster, GPipe(), 2, lambda plan: None)


@pytest.mark.parametrize(
    ("written", "replicas", "is_rejected"),
    [(2, (1, 2), True), (2, (2, 1), False), (0, (1, 1), False), (None, (2, 2), False)],
)
def test_weight_written_per_example_in_a_replicated_stage_raises(written, replicas, is_rejected):
    """Each replica would write other values. A condition on examples may read weights."""
    variables = weights()

    def layer(number: int, x: tf.Tensor) -> tf.Tensor:
        weight = variables[number]
        if number == written:
            weight.assign(weight * (1.0 + tf.reduce_mean(x)))
        is_large = tf.reduce_mean(x) > 1.0
        return tf_libra.boundary(tf.cond(is_large, lambda: -x @ weight, lambda: x @ weight))

    def step(images: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            x = tf.reshape(images, [-1, 64])
            for number in range(3):
                x = layer(number, x)
            loss = tf.reduce_mean(x)
        apply(variables, tape.gradient(loss, variables))

    traces = SizedTraces(StepRecorder(tf.function(step)), ((IMAGES, LABELS), {}), 8, 8)
    names = [layer.name for layer in traces.microbatch_graph.layers]
    layout = Layout.from_pipeline_plan(make_plan(names, (0, 2), replicas, 1))
    with contextlib.ExitStack() as stack:
        if is_rejected:
            stack.enter_context(pytest.raises(ValueError, match=r"'weight2' .* 2 replicas"))
        check_resharding(traces.partition(layout.starts), layout, traces.axes(8))


def test_shared_layer_that_writes_variables_joins_all_layers_between():
    """Two stages cannot share a batch normalization."""
    keras = tf.keras

    def layer_names(shared: bool) -> tuple[str, ...]:
        first = keras.layers.BatchNormalization()
        second = first if shared else keras.layers.BatchNormalization()
        dense = [keras.layers.Dense(8) for _ in range(3)]
        parts = [keras.layers.Flatten(), dense[0], first, dense[1], second, dense[2]]
        x = inputs = keras.layers.Input([8, 8, 1])
        for part in parts:
            x = part(x)
        model = keras.Model(inputs, x)
        variables = model.trainable_variables

        def step(images: tf.Tensor, labels: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(images, training=True) ** 2)
            apply(variables, tape.gradient(loss, variables))

        graph = trace(StepRecorder(tf.function(step)), IMAGES, LABELS, 8)
        return tuple(layer.name for layer in graph.layers)

    assert len(layer_names(shared=False)) == 5
    assert len(layer_names(shared=True)) == 3


def test_boundary_outside_of_a_recorded_step_returns_its_argument():
    x = tf.ones([2])
    assert tf_libra.boundary(x) is x


def test_boundary_logs_no_autograph_warning(caplog):
    """AutoGraph does not convert the function; a failed conversion would log a warning."""
    analyze(supported())
    assert "AutoGraph" not in caplog.text


@pytest.mark.parametrize(
    "option",
    [
        {"cache_dir": "somewhere"},
        {"local_variables": ["*"]},
        {"inner_gradients": "local"},
        {"check_numerics": "raise"},
        {"max_tuning_steps": 7},
        {"tuning": tf_libra.Tuning(max_seconds=7)},
    ],
)
def test_data_parallel_option_of_a_model_parallel_step_raises(option):
    (name,) = option
    with pytest.raises(ValueError, match=f"^{name} "):
        tf_libra.optimize(Spp(num_microbatches=2), **option)
    with pytest.raises(ValueError, match=r"^check_numerics .* got 'skip'"):
        tf_libra.optimize("deeppool", check_numerics="skip")


def test_fault_options_of_a_pipeline_are_supported():
    faults = tf_libra.Faults(liveness_seconds=7)
    assert callable(tf_libra.optimize(Spp(num_microbatches=2), timeout_seconds=5, faults=faults))
