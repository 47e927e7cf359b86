"""A step that cannot be a pipeline is rejected by name, before anything runs."""

import contextlib
from typing import Any

import horovod.tensorflow as hvd
import pytest
import tensorflow as tf

import tf_libra
from tests.model_parallel.job import batches, plan_of, traced
from tf_libra.model_parallel.capture.batch_axes import BatchAxes
from tf_libra.model_parallel.capture.step_arguments import as_tensors, num_samples
from tf_libra.model_parallel.capture.step_recorder import StepRecorder
from tf_libra.model_parallel.partition.layout import Layout
from tf_libra.model_parallel.partition.resharding import check_exchanges
from tf_libra.model_parallel.partition.sized_traces import Traces
from tf_libra.model_parallel.partition.stage_partition import StagePartition
from tf_libra.model_parallel.partition.update_phase import Update
from tf_libra.model_parallel.planning.feasibility import plan_for
from tf_libra.strategies import GPipe, Spp

IMAGES, LABELS = batches(1, 8)[0]


def planned(step: Any) -> None:
    """As far as a step gets before it is planned."""
    graph = traced(StepRecorder(tf.function(step)), IMAGES, LABELS, 8)
    Update(StagePartition(graph, range(len(graph.layers))))


def weights() -> list[tf.Variable]:
    return [tf.Variable(tf.eye(64), name=f"weight{i}") for i in range(3)]


def forward(variables: list[tf.Variable], images: tf.Tensor) -> tf.Tensor:
    x = tf.reshape(images, [-1, 64])
    for one in variables:
        x = tf_libra.boundary(tf.tanh(x @ one))
    return tf.reduce_mean(x)


def two_losses() -> Any:
    variables = weights()

    def step(images: tf.Tensor, labels: tf.Tensor) -> None:
        for part in (variables[:1], variables[1:]):
            with tf.GradientTape() as tape:
                loss = forward(variables, images)
            for one, gradient in zip(part, tape.gradient(loss, part), strict=True):
                one.assign_sub(gradient)

    return step


def adversarial() -> Any:
    """A generator and a discriminator, each with its loss and its optimizer."""
    keras = tf.keras
    generator = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(64)])
    discriminator = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(1)])
    generator.build([None, 8, 8, 1])
    discriminator.build([None, 64])
    optimizers = [keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.1)]

    def step(images: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as first, tf.GradientTape() as second:
            fake = discriminator(generator(images))
            real = discriminator(tf.reshape(images, [-1, 64]))
            losses = [tf.reduce_mean(fake), tf.reduce_mean(real - fake)]
        for one, tape, loss, model in zip(
            optimizers, (first, second), losses, (generator, discriminator), strict=True
        ):
            variables = model.trainable_variables
            one.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    return step


def by_size() -> Any:
    """Another computation for another number of samples."""
    variables = weights()

    def step(images: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = forward(variables, images)
            if images.shape[0] > 8:
                loss = tf.square(loss)
        for one, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            one.assign_sub(gradient)

    return step


def unknown_shape() -> Any:
    """Another layer needs the selection of one layer."""
    variables = weights()

    def step(images: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            x = tf.tanh(tf.reshape(images, [-1, 64]) @ variables[0])
            some = tf.boolean_mask(x, labels > 4)
            x = tf_libra.boundary(x)
            for one in variables[1:]:
                x = tf_libra.boundary(tf.tanh(x @ one))
            loss = tf.reduce_mean(x) * tf.reduce_sum(some**2)
        for one, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            one.assign_sub(gradient)

    return step


def input_gradient() -> Any:
    variables = weights()

    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(images)
            loss = forward(variables, images)
        return tape.gradient(loss, [*variables, images])[-1]

    return step


def complex_weight() -> Any:
    variables = weights()
    phase = tf.Variable(tf.ones([], tf.complex64), name="phase")

    def step(images: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = forward(variables, images) * tf.math.real(phase)
        every = [*variables, phase]
        for one, gradient in zip(every, tape.gradient(loss, every), strict=True):
            one.assign_sub(gradient)

    return step


def jacobian() -> Any:
    variables = weights()

    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = forward(variables, images)
        return tape.jacobian(loss, variables[0])

    return step


def boundary_in_a_function() -> Any:
    variables = weights()

    def step(images: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.function(forward)(variables, images)
        variables[0].assign_sub(tape.gradient(loss, variables)[0])

    return step


def telling() -> Any:
    """All updates or none, and a word only then."""
    variables = weights()

    def step(images: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = forward(variables, images)
        gradients = tape.gradient(loss, variables)
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(one)) for one in gradients])
        if finite:
            for one, gradient in zip(variables, gradients, strict=True):
                one.assign_sub(gradient)
            tf.print("updated")

    return step


def update_by_samples() -> Any:
    variables = weights()

    def step(images: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = forward(variables, images)
        for one, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            one.assign_sub(gradient * loss)

    return step


def told_of_the_new_step() -> Any:
    """The loss, under a number that the update has counted on."""
    variables, steps = weights(), tf.Variable(0, dtype=tf.int64, name="steps")

    def step(images: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = forward(variables, images)
        for one, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            one.assign_sub(gradient)
        steps.assign_add(1)
        tf.print("loss", loss, "of", steps)

    return step


def descend(variables: list[tf.Variable], images: tf.Tensor) -> None:
    with tf.GradientTape() as tape:
        loss = forward(variables, images)
    for one, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
        one.assign_sub(gradient)


def loss_after_the_update() -> Any:
    variables = weights()

    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        descend(variables, images)
        return forward(variables, images)

    return step


def norm_after_the_update() -> Any:
    """The norm of the weights of all stages; the norm of one stage alone may be returned."""
    variables = weights()

    def step(images: tf.Tensor, labels: tf.Tensor) -> Any:
        descend(variables, images)
        return tf.norm(variables[0]), tf.linalg.global_norm(variables)

    return step


def metric_of_both() -> Any:
    """The norm of all gradients, and under the same name the loss."""
    variables, metric = weights(), tf.keras.metrics.Mean("both")

    def step(images: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = forward(variables, images)
        gradients = tape.gradient(loss, variables)
        metric.update_state(loss)
        metric.update_state(tf.linalg.global_norm(gradients))
        for one, gradient in zip(variables, gradients, strict=True):
            one.assign_sub(gradient)

    return step


def forward_alone() -> Any:
    """A step that can be a pipeline, with AutoGraph at work on it."""
    variables = weights()

    def step(images: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = forward(variables, images)
        for one, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            one.assign_sub(gradient)

    return step


def averaged_by_horovod(average: str) -> Any:
    """Averages with options that need all ranks, while each runs layers of its own."""
    variables = weights()
    options = {
        "compressed": {"compression": hvd.Compression.fp16},
        "greatest": {"op": hvd.Max},
    }

    def step(images: tf.Tensor, labels: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = forward(variables, images)
        if average in ("local", *options):
            tape = hvd.DistributedGradientTape(tape, **options.get(average, {}))
        if average == "local":
            tape.register_local_source(variables[1])
        gradients = tape.gradient(loss, variables)
        if average == "clipped":
            gradients = [hvd.allreduce(tf.clip_by_norm(one, 1.0)) for one in gradients]
        for one, gradient in zip(variables, gradients, strict=True):
            one.assign_sub(gradient)
        return hvd.allreduce(loss) if average == "loss" else loss

    return step


def nothing_trained() -> Any:
    variables = weights()
    return lambda images, labels: forward(variables, images)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (two_losses, "several calls of GradientTape.gradient"),
        (adversarial, "several calls of GradientTape.gradient, as of two models"),
        (unknown_shape, "its shape, .*, is known only in a step"),
        (input_gradient, "which is no variable"),
        (complex_weight, "the gradient of 'phase' is complex64: stages average real numbers"),
        (jacobian, "computes a jacobian"),
        (boundary_in_a_function, "call it in the step itself"),
        (telling, "updates 'weight0' together with what belongs to other stages"),
        (update_by_samples, "Assign.* is of the update, or comes after it, and takes (?!Assign)"),
        (told_of_the_new_step, "Print.* comes after it, and takes .*, which depends on sam"),
        (loss_after_the_update, "stages update once, after all samples"),
        (
            norm_after_the_update,
            "takes 'weight0' to other stages when it .* before apply_gradients",
        ),
        (metric_of_both, "the metric 'both' adds up what depends on samples, and what was updated"),
        (nothing_trained, "computes no gradient of a trainable variable"),
    ],
)
def test_a_step_that_cannot_be_a_pipeline_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        planned(make())


@pytest.mark.usefixtures("horovod")
@pytest.mark.parametrize(
    ("average", "message"),
    [
        ("clipped", r"gradient of 'weight.' with Horovod \(what a rank has made of it"),
        (
            "compressed",
            r"gradient of 'weight.' with Horovod \(compressed to float16\), where",
        ),
        ("greatest", r"gradient of 'weight.' with Horovod \(op=Max\), where stages"),
        ("local", "averages gradients with Horovod, and not that of 'weight1', as where regis"),
        ("loss", "calls HorovodAllreduce, .*, for which all ranks have to come.*take it out"),
    ],
)
def test_what_horovod_is_asked_in_stages_is_refused(average: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        planned(averaged_by_horovod(average))


def test_a_step_that_depends_on_the_size_of_its_batch_is_refused():
    """The error names the first op that differs."""
    recorder = StepRecorder(tf.function(by_size()))
    graphs = [traced(recorder, IMAGES, LABELS, size) for size in (8, 16)]
    with pytest.raises(ValueError, match=r"computes .* for a batch of 8 samples where it"):
        BatchAxes(graphs[0], 8, graphs[1], 16)


RETURNED = {
    "size": lambda size, loss, weight: size,
    "of_weights": lambda size, loss, weight: weight / tf.cast(size, tf.float32),
    "of_samples": lambda size, loss, weight: loss * tf.cast(size, tf.float32),
    "constant": lambda size, loss, weight: 2.0 + tf.zeros([3]),
}


@pytest.mark.parametrize("returned", RETURNED)
def test_a_step_that_returns_the_size_of_its_batch_is_refused(returned):
    """The size would be a microbatch's. An output that depends on samples, too, is gathered."""
    variables = weights()
    is_refused = returned in ("size", "of_weights")

    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = forward(variables, images)
        for one, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            one.assign_sub(gradient)
        return RETURNED[returned](tf.shape(images)[0], loss, variables[0])

    traces = Traces(StepRecorder(tf.function(step)), ((IMAGES, LABELS), {}), 8, 8)
    with contextlib.ExitStack() as stack:
        if is_refused:
            stack.enter_context(pytest.raises(ValueError, match="made of the size of the batch"))
        traces.check_update()


def test_a_layer_does_not_end_in_counts():
    variables = weights()

    def step(images: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            scale = tf.cast(tf_libra.boundary(labels), tf.float32)
            loss = forward(variables, images * scale[:, None, None, None])
        for one, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            one.assign_sub(gradient)

    with pytest.raises(ValueError, match=r"boundary is given .*int32"):
        StepRecorder(tf.function(step)).record((IMAGES, LABELS), {})


@pytest.mark.parametrize("counts", [True, False])
def test_a_step_that_counts_samples_in_its_update_is_refused(counts):
    """A stage sees those of a microbatch. Gradients of a sum may be divided by their number."""
    variables, seen = weights(), tf.Variable(0, name="seen")

    def step(images: tf.Tensor, labels: tf.Tensor) -> None:
        size = tf.shape(images)[0]
        with tf.GradientTape() as tape:
            loss = forward(variables, images) * tf.cast(size, tf.float32)
        if counts:
            seen.assign_add(size)
        for one, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            one.assign_sub(gradient / tf.cast(size, tf.float32))

    traces = Traces(StepRecorder(tf.function(step)), ((IMAGES, LABELS), {}), 8, 8)
    with contextlib.ExitStack() as stack:
        if counts:
            stack.enter_context(pytest.raises(ValueError, match="'seen' is updated by the size"))
        traces.check_update()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((IMAGES, LABELS[:3]), r"as many samples.*they have \[3, 8\]"),
        ((tf.constant(1.0),), r"as many samples.*they have \[\]"),
        ((IMAGES[:0],), r"as many samples.*they have \[0\]"),
        (
            (IMAGES, tf.Variable(1.0)),
            "is given a ResourceVariable: a step in stages divides tensors",
        ),
        ((iter([IMAGES]),), "is given a list_iterator: a step in stages divides tensors"),
        ((IMAGES, {1}), "is given a set: .*other objects of Python, if they have"),
    ],
)
def test_arguments_that_are_no_batch_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        num_samples("train_step", as_tensors("train_step", arguments))


@pytest.mark.parametrize("is_used", [True, False])
def test_samples_of_text_are_refused_where_a_rank_would_need_them(is_used: bool) -> None:
    variables = weights()

    def step(images: tf.Tensor, names: tf.Tensor) -> None:
        lengths = tf.cast(tf.strings.length(names), tf.float32)
        with tf.GradientTape() as tape:
            loss = forward(variables, images) * (tf.reduce_mean(lengths) if is_used else 1.0)
        for one, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            one.assign_sub(gradient)

    with contextlib.ExitStack() as stack:
        if is_used:
            refused = pytest.raises(ValueError, match=r"'names', samples of string.*look words up")
            stack.enter_context(refused)
        Traces(StepRecorder(tf.function(step)), ((IMAGES, tf.fill([8], "name")), {}), 8, 8)


def test_a_plan_that_leaves_a_rank_without_a_stage_is_refused():
    """GPipe has a stage per layer where there are fewer layers than devices."""
    layers = tf_libra.LayerGraph.chain([1, 1], [1, 1], [1, 1], [1])
    cluster = tf_libra.Cluster.from_bandwidth([[0, 1, 1], [1, 0, 1], [1, 1, 0]])
    with pytest.raises(ValueError, match=r"gpipe has no stage for ranks \[2\]: start 2 workers"):
        plan_for(layers, cluster, GPipe(), 2, lambda plan: None)


@pytest.mark.parametrize(
    ("written", "replicas", "is_refused"),
    [(2, (1, 2), True), (2, (2, 1), False), (0, (1, 1), False), (None, (2, 2), False)],
)
def test_weights_that_are_written_by_samples_have_no_replicas(written, replicas, is_refused):
    """Each would write others, by its own samples. A condition may read weights, by samples."""
    variables = weights()

    def layer(number: int, x: tf.Tensor) -> tf.Tensor:
        one = variables[number]
        if number == written:
            one.assign(one * (1.0 + tf.reduce_mean(x)))
        is_large = tf.reduce_mean(x) > 1.0
        return tf_libra.boundary(tf.cond(is_large, lambda: -x @ one, lambda: x @ one))

    def step(images: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            x = tf.reshape(images, [-1, 64])
            for number in range(3):
                x = layer(number, x)
            loss = tf.reduce_mean(x)
        for one, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            one.assign_sub(gradient)

    traces = Traces(StepRecorder(tf.function(step)), ((IMAGES, LABELS), {}), 8, 8)
    names = [one.name for one in traces.whole.layers]
    layout = Layout.of_pipeline(plan_of(names, (0, 2), replicas, 1))
    with contextlib.ExitStack() as stack:
        if is_refused:
            refused = pytest.raises(ValueError, match=r"'weight2' by samples, .* of 2 replicas")
            stack.enter_context(refused)
        check_exchanges(traces.cut(layout.starts), layout, traces.axes(8))


def test_a_shared_layer_that_writes_joins_what_lies_between():
    """Batch normalization that two layers share cannot be of two stages."""
    keras = tf.keras

    def make(shared: bool) -> tuple[str, ...]:
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
            for one, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
                one.assign_sub(gradient)

        graph = traced(StepRecorder(tf.function(step)), IMAGES, LABELS, 8)
        return tuple(layer.name for layer in graph.layers)

    assert len(make(shared=False)) == 5
    assert len(make(shared=True)) == 3


def test_a_boundary_changes_no_other_step():
    x = tf.ones([2])
    assert tf_libra.boundary(x) is x


def test_a_boundary_is_traced_without_a_word(caplog):
    """AutoGraph leaves it alone, which else warns of what it cannot convert."""
    planned(forward_alone())
    assert "AutoGraph" not in caplog.text


def test_microbatches_have_to_be_said():
    with pytest.raises(ValueError, match=r"num_microbatches must be given, at least 1, got None"):
        tf_libra.optimize("spp")(lambda images, labels: None)


@pytest.mark.parametrize(
    "option",
    [
        {"threads": 2},
        {"cache_dir": "somewhere"},
        {"local_variables": ["*"]},
        {"inner_gradients": "local"},
        {"check_numerics": "raise"},
        {"max_tuning_steps": 7},
        {"tuning": tf_libra.Tuning(max_steps=7)},
    ],
)
def test_options_of_data_parallelism_are_refused(option):
    (name,) = option
    with pytest.raises(ValueError, match=f"^{name} is no option of pipelines"):
        tf_libra.optimize(Spp(num_microbatches=2), **option)
    with pytest.raises(ValueError, match=r"^check_numerics is no .* bursts.*allowed are .*plan"):
        tf_libra.optimize("deeppool", faults=tf_libra.Faults(check_numerics="skip"))


def test_how_long_to_wait_for_others_is_asked_of_pipelines_too():
    faults = tf_libra.Faults(timeout_seconds=5, liveness_seconds=7)
    assert callable(tf_libra.optimize(Spp(num_microbatches=2), faults=faults))
    assert callable(tf_libra.optimize(Spp(num_microbatches=2), liveness_seconds=7))


def test_data_parallelism_lets_no_variables_go():
    with pytest.raises(ValueError, match=r"^release_variables is no option of data .*'libra'"):
        tf_libra.optimize("libra", release_variables=True)
    with pytest.raises(ValueError, match=r"^memory_bytes is no .* of pipelines, got 1"):
        tf_libra.optimize("libra", memory_bytes=1e9)
    with pytest.raises(ValueError, match=r"^memory_bytes must be"):
        tf_libra.optimize(Spp(num_microbatches=2), memory_bytes=0)
