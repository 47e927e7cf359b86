"""Steps that one rank would compute otherwise than all ranks are found."""

from dataclasses import replace

import pytest
import tensorflow as tf

from tests.model_parallel import models
from tests.model_parallel.capture.differences import difference, difference_of, traces_of
from tests.model_parallel.job import batches, build_model
from tests.model_parallel.trained_model import from_keras
from tf_libra.model_parallel.capture.joint_batch import find_differences
from tf_libra.planning.allowed_differences import ALLOWED


@pytest.mark.parametrize(
    "make",
    [
        models.mlp,
        models.embedded,
        models.counted,
        models.spectral,
        models.recurrent,
        models.transformer,
        models.calling,
        models.conditional,
        models.tied,
    ],
)
def test_step_of_a_mean_over_examples_is_the_same(make):
    assert difference(make) is None


def normalized_without_weights():
    """A model that normalizes the inputs of a layer, and the outputs of a recurrent one."""
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            layers.Input([8, 8, 1]),
            layers.Reshape([8, 8]),
            layers.BatchNormalization(scale=False, center=False),
            layers.LSTM(4),
            layers.BatchNormalization(scale=False),
            layers.Dense(10),
        ]
    )
    return from_keras(model, tf.keras.optimizers.SGD(0.1))


@pytest.mark.parametrize(
    ("make", "named", "allowed"),
    [
        (models.normalized, "moving_mean", "batch_statistics"),
        (normalized_without_weights, "moving_mean", "batch_statistics"),
        (models.running_mean, "batch statistics", "batch_statistics"),
        (models.dropping, "random", "random_draws"),
        (models.generating, "random", "random_draws"),
    ],
)
def test_statistics_and_draws_are_named_unless_they_are_allowed(make, named, allowed):
    """The reason names what would allow it, and nothing else does."""
    others = {*ALLOWED} - {allowed}
    found = difference(make, others)
    assert named in found and f'allow=("{allowed}",)' in found
    assert difference(make, {allowed}) is None


def test_statistics_excuse_no_other_relation_of_examples():
    assert "no mean over examples" in difference(rooted_after_normalization, ALLOWED)


def rooted_after_normalization():
    trained = models.normalized()

    def loss(labels, logits):
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        return tf.sqrt(tf.reduce_mean(losses))

    return replace(trained, loss=loss)


def tracked(losses, mean, running):
    """The loss, of which the variable holds a moving average."""
    running.assign(0.9 * running + 0.1 * mean)
    return tf.reduce_mean(losses)


def divided(losses, mean, running):
    running.assign(0.9 * running + 0.1 * mean)
    return tf.reduce_sum(losses) / mean


def divided_one_by_one(losses, mean, running):
    running.assign(0.9 * running + 0.1 * mean)
    return tf.reduce_mean(losses / tf.stop_gradient(mean))


def divided_by_the_running_mean(losses, mean, running):
    running.assign(0.9 * running + 0.1 * mean)
    return tf.reduce_mean(losses) / running


def rooted_mean(losses, mean, running):
    running.assign(mean)
    return tf.sqrt(mean)


@pytest.mark.parametrize(
    ("loss", "is_same"),
    [
        (tracked, True),
        (divided, False),
        (divided_one_by_one, False),
        (divided_by_the_running_mean, False),
        (rooted_mean, False),
    ],
)
def test_statistics_of_the_loss_normalize_no_layer(loss, is_same):
    """Batch normalization divides what a layer with weights takes."""
    [(images, _)] = batches(1, 4)
    images = tf.reshape(images, [4, -1])
    weight = tf.Variable(tf.ones([images.shape[1], 1]))
    running = tf.Variable(1.0, trainable=False)

    @tf.function
    def step(images, labels):
        with tf.GradientTape() as tape:
            losses = tf.squeeze(images @ weight, 1) ** 2
            result = loss(losses, tf.reduce_mean(losses), running)
        weight.assign_sub(0.1 * tape.gradient(result, weight))
        return result

    found = difference_of(step, images, tf.zeros([4]), ALLOWED)
    assert found is None if is_same else "no mean over examples" in found


def influenced(make, allow):
    """Returns the names of the variables, and the results, that allowed differences explain."""
    trained = build_model(make)
    traces = traces_of(tf.function(trained.step), *batches(1, 4)[0])
    graph = traces.microbatch_graph
    found = find_differences(graph, traces.other_graph, allow)
    returned = tf.nest.flatten(graph.recording.concrete.structured_outputs)
    assert found.results <= {*range(len(returned))}
    return {graph.variable_name(name) for name in found.variables}, len(found.results)


def test_variables_and_results_are_explained_by_what_they_are_computed_from():
    """Weights of all layers, since activations and gradients are; steps are counted as before."""
    variables, num_results = influenced(models.normalized, {"batch_statistics"})
    kinds = {name.rpartition("/")[2] for name in variables}
    assert kinds >= {"kernel", "gamma", "beta", "moving_mean", "moving_variance"}
    assert num_results and not {"iteration", "learning_rate"} & kinds
    drawn, _ = influenced(models.dropping, {"random_draws"})
    assert any("seed_generator_state" in name for name in drawn)
    assert influenced(models.dropping, {"batch_statistics"}) == (set(), 0)
    assert influenced(models.dropping, {"host_effects", "joint_results"}) == (set(), 0)


def masked(images, losses):
    mask = tf.cast(images[:, 0] > 0, losses.dtype)
    return tf.reduce_sum(mask * losses) / tf.reduce_sum(mask)


def selected(images, losses):
    return tf.reduce_mean(tf.boolean_mask(losses, images[:, 0] > 0))


def masked_by_keras(images, losses):
    mean = tf.keras.losses.MeanAbsoluteError()
    losses._keras_mask = images[:, 0] > 0
    return mean(tf.zeros_like(losses), losses)


def without_zero(images, losses):
    return tf.math.divide_no_nan(
        tf.reduce_sum(losses), tf.math.count_nonzero(images[:, 0], dtype=losses.dtype)
    )


def hardest(images, losses):
    return tf.reduce_mean(tf.math.top_k(losses, 2).values)


def added_to_the_next(images, losses):
    return tf.reduce_mean(losses * tf.roll(losses, 1, axis=0))


def smoothed_along_examples(images, losses):
    smooth = tf.nn.conv1d(losses[tf.newaxis, :, tf.newaxis], tf.ones([3, 1, 1]), 1, "SAME")
    return tf.reduce_mean(smooth**2)


def smoothed_along_columns(images, losses):
    columns = losses[:, tf.newaxis, tf.newaxis] * images[:, :, tf.newaxis]
    return tf.reduce_mean(tf.nn.conv1d(columns, tf.ones([3, 1, 1]), 1, "SAME") ** 2)


def counted_by_shape(images, losses):
    return tf.reduce_sum(losses) / tf.cast(tf.shape(losses)[0], losses.dtype)


def normalized_per_example(images, losses):
    weights = images[:, :2] / (1e-3 + tf.reduce_sum(tf.abs(images[:, :2]), axis=1, keepdims=True))
    return tf.reduce_mean(losses * (2.0 + tf.reduce_sum(weights, axis=1)))


def rooted(images, losses):
    return tf.sqrt(tf.reduce_mean(losses))


def compared_with_their_mean(images, losses):
    return tf.reduce_mean(losses * (images[:, 0] - tf.reduce_mean(images[:, 0])))


def multiplied_means(images, losses):
    return tf.reduce_mean(losses) + tf.reduce_mean(losses) * tf.reduce_mean(images)


def masked_by_column(images, losses):
    mask = tf.cast(images > 0, losses.dtype)
    sums = tf.reduce_sum(mask * losses[:, tf.newaxis], axis=0)
    return tf.reduce_mean(sums / (1e-3 + tf.reduce_sum(mask, axis=0)))


def masked_in_a_function(images, losses):
    return tf.function(masked)(images, losses)


def masked_in_a_loop(images, losses):
    total = tf.zeros([])
    for column in tf.range(3):
        total += masked(images[:, column : column + 1], losses)
    return total


def scaled_under_a_condition(images, losses):
    is_large = tf.reduce_mean(images) > 0
    return tf.cond(is_large, lambda: tf.reduce_mean(losses), lambda: 2 * tf.reduce_mean(losses))


def above_their_mean(images, losses):
    return tf.reduce_mean(tf.where(losses > tf.reduce_mean(losses), losses, 0.0))


def contrasted(images, losses):
    pairs = losses[:, tf.newaxis] * losses[tf.newaxis]
    return tf.reduce_mean(losses) + 1e-3 * tf.reduce_mean(pairs)


def scaled_by_a_selection(images, losses):
    return tf.reduce_mean(losses) * tf.where(tf.reduce_any(images > 2), 1.0, 2.0)


def added_in_a_function(images, losses):
    return tf.function(lambda values: tf.reduce_mean(0.5 * values))(losses)


def added_in_a_loop(images, losses):
    total = tf.zeros([])
    for column in tf.range(3):
        total += tf.reduce_mean(losses * images[:, column])
    return total


def recomputed(images, losses):
    return tf.reduce_mean(tf.recompute_grad(lambda values: tf.tanh(values) ** 2)(losses))


@pytest.mark.parametrize(
    ("mean", "is_same"),
    [
        (masked, False),
        (selected, False),
        (masked_by_keras, False),
        (without_zero, False),
        (rooted, False),
        (hardest, False),
        (added_to_the_next, False),
        (smoothed_along_examples, False),
        (compared_with_their_mean, False),
        (multiplied_means, False),
        (masked_by_column, False),
        (masked_in_a_function, False),
        (masked_in_a_loop, False),
        (scaled_under_a_condition, False),
        (above_their_mean, False),
        (contrasted, False),
        (scaled_by_a_selection, False),
        (counted_by_shape, True),
        (smoothed_along_columns, True),
        (normalized_per_example, True),
        (added_in_a_function, True),
        (added_in_a_loop, True),
        (recomputed, True),
    ],
)
def test_losses_that_are_no_means_over_examples_are_named(mean, is_same):
    """The average of gradients is another one, although a batch may not show it."""
    [(images, _)] = batches(1, 4)
    flat = tf.reshape(images, [4, -1])
    weight = tf.Variable(tf.ones([flat.shape[1], 1]))

    @tf.function
    def step(images, labels):
        with tf.GradientTape() as tape:
            loss = mean(images, tf.squeeze(images @ weight, 1) ** 2)
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss

    found = difference_of(step, flat, tf.zeros([4]))
    assert found is None if is_same else "no mean over examples" in found


def test_statistics_of_keras_2_are_no_metrics():
    def make():
        trained = models.mlp()
        inner, mean = (
            trained.call,
            tf.Variable(
                0.0,
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.MEAN,
            ),
        )

        def calling(images):
            mean.assign(0.9 * mean + tf.reduce_mean(images))
            return inner(images)

        trained.call = calling
        return trained

    assert "batch statistics" in difference(make)
