"""Updates from sparse gradients that stages may replace by updates from dense ones."""

import pytest
import tensorflow as tf

from tf_libra.model_parallel.capture.sparse_updates import find_use_of_rows
from tf_libra.model_parallel.capture.step_recorder import StepRecorder
from tf_libra.model_parallel.partition.sized_traces import SizedTraces

keras = tf.keras
WORDS = tf.constant(4 * [[0, 1, 1]])


def make_step(apply):
    """Returns a step whose table is looked up twice."""
    table, other = tf.Variable(tf.ones([6, 2])), tf.Variable(tf.ones([2]))

    @tf.function
    def step(words):
        with tf.GradientTape() as tape:
            rows = tf.gather(table, words) * tf.gather(table, words[:, :1])
            loss = tf.reduce_mean(rows * other)
        apply(tape.gradient(loss, [table, other]), [table, other])
        return loss

    return step


def use_of_rows(apply):
    """Returns the op that uses rows in a step."""
    traces = SizedTraces(StepRecorder(make_step(apply), joins_rows=True), ((WORDS,), {}), 4, 4)
    assert traces.microbatch_graph.recording.has_rows
    return find_use_of_rows(traces.microbatch_graph)


def by_optimizer(optimizer):
    def apply(gradients, variables):
        if not optimizer.built:
            optimizer.build(variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    return apply


def scatter(gradients, variables):
    (rows, _), (table, _) = gradients, variables
    table.scatter_sub(tf.IndexedSlices(0.1 * rows.values / 2.0, rows.indices))


def assign_sum(gradients, variables):
    sums = tf.convert_to_tensor(gradients[0])
    variables[0].assign_sub(0.1 * sums / tf.norm(sums))


def scatter_squares(gradients, variables):
    variables[0].scatter_sub(tf.IndexedSlices(gradients[0].values ** 2, gradients[0].indices))


def scatter_rounded(gradients, variables):
    rounded = tf.cast(tf.cast(gradients[0].values, tf.int32), tf.float32)
    variables[0].scatter_sub(tf.IndexedSlices(rounded, gradients[0].indices))


def scale_each_row(gradients, variables):
    rows = gradients[0]
    scales = tf.range(tf.cast(tf.shape(rows.values)[0], tf.float32))[:, tf.newaxis]
    variables[0].scatter_sub(tf.IndexedSlices(rows.values * scales, rows.indices))


def scatter_elsewhere(gradients, variables):
    variables[0].scatter_sub(tf.IndexedSlices(gradients[0].values, 5 - gradients[0].indices))


def overwrite(gradients, variables):
    variables[0].scatter_update(gradients[0])


@pytest.mark.parametrize(
    "apply",
    [
        by_optimizer(keras.optimizers.SGD(0.1)),
        by_optimizer(keras.optimizers.SGD(0.1, weight_decay=0.1)),
        scatter,
        assign_sum,
    ],
)
def test_rows_are_added(apply):
    assert use_of_rows(apply) is None


@pytest.mark.parametrize(
    "apply",
    [
        by_optimizer(keras.optimizers.Adam(0.1)),
        by_optimizer(keras.optimizers.Adagrad(0.1)),
        by_optimizer(keras.optimizers.SGD(0.1, global_clipnorm=0.5)),
        scatter_squares,
        scatter_rounded,
        scale_each_row,
        scatter_elsewhere,
        overwrite,
    ],
)
def test_rows_have_another_use(apply):
    """Squares of rows that have the same id are no square of their sum."""
    assert use_of_rows(apply)


def test_stages_have_dense_sums_as_rows_of_all_ids():
    """A step written by hand reads values and ids, which a dense gradient does not have."""
    recorder = StepRecorder(make_step(scatter))
    with pytest.raises(AttributeError):
        recorder.record((WORDS,), {})
    recorder.return_rows()
    recording = recorder.record((WORDS,), {})
    assert not recording.has_rows
    [op] = [op for op in recording.concrete.graph.get_operations() if "Scatter" in op.type]
    _, ids, rows = op.inputs
    assert tf.get_static_value(ids).tolist() == [*range(6)] and rows.shape == [6, 2]
