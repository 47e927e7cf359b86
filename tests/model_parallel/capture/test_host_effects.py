"""Effects outside of variables, which one rank would have instead of all, are found."""

import pytest
import tensorflow as tf

from tests.model_parallel import models
from tests.model_parallel.capture.differences import difference


def insert(x):
    table = tf.lookup.experimental.MutableHashTable(tf.float32, tf.float32, 0.0, name="table")
    table.insert(x, x + table.lookup(x))


def insert_in_a_function(x):
    tf.function(insert)(x)


def enqueue(x):
    tf.queue.FIFOQueue(9, [tf.float32], shared_name="queue").enqueue(x)


def summarize(x):
    with tf.init_scope():
        writer = tf.summary.create_file_writer("summaries")
    with writer.as_default(step=1):
        tf.summary.scalar("x", x)


def read_data(x):
    with tf.init_scope():
        iterator = iter(tf.data.Dataset.range(9))
    return next(iterator)


def calling_first(call):
    def make():
        trained = models.mlp()
        inner = trained.call

        def calling(images):
            call(tf.constant(1.0))
            return inner(images)

        trained.call = calling
        return trained

    return make


def test_lookups_in_tables_are_no_effects():
    keys = tf.constant([1], tf.int64)
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, [2.0]), 0.0)

    def look_up(x):
        return table.lookup(tf.cast(x, tf.int64))

    assert difference(calling_first(look_up)) is None
    assert difference(calling_first(tf.function(look_up))) is None


@pytest.mark.parametrize(
    "call",
    [
        tf.print,
        lambda x: tf.py_function(lambda y: y, [x], tf.float32),
        insert,
        insert_in_a_function,
        enqueue,
        summarize,
        read_data,
    ],
)
def test_effects_outside_of_variables_are_named(call, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    make = calling_first(call)
    found = difference(make)
    assert "only one rank" in found and 'allow=("host_effects",)' in found
    assert difference(make, {"host_effects"}) is None


def check_numbers(x):
    tf.debugging.check_numerics(x, "x")


def check_with_a_condition(x):
    tf.debugging.assert_greater(x, -9.0)


def check_in_a_function(x):
    tf.function(check_with_a_condition)(x)


def check_shape(x):
    tf.ensure_shape(x, [])


@pytest.mark.parametrize(
    "call", [check_numbers, check_with_a_condition, check_in_a_function, check_shape]
)
def test_checks_of_values_are_no_effects(call):
    assert difference(calling_first(call)) is None


def test_checks_of_all_numbers_are_no_effects():
    tf.debugging.enable_check_numerics()
    try:
        assert difference(models.mlp) is None
    finally:
        tf.debugging.disable_check_numerics()


@pytest.mark.parametrize("write", ["summary", "table", "queue"])
def test_examples_in_resources_that_are_no_variables_are_effects(write, monkeypatch, tmp_path):
    """Values that are no batch statistics, although examples determine them."""
    monkeypatch.chdir(tmp_path)
    writer = tf.summary.create_file_writer("summaries")
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, 0.0)
    queue = tf.queue.FIFOQueue(9, [tf.float32])

    def write_mean(images):
        mean = tf.reduce_mean(images)
        if write == "summary":
            with writer.as_default(step=1):
                tf.summary.scalar("mean", mean)
        elif write == "table":
            table.insert(tf.constant(1, tf.int64), mean)
        else:
            queue.enqueue(mean)

    def make():
        trained = models.mlp()
        inner = trained.call

        def calling(images):
            write_mean(images)
            return inner(images)

        trained.call = calling
        return trained

    assert 'allow=("host_effects",)' in difference(make)
    assert difference(make, {"host_effects"}) is None


def test_print_in_a_condition_that_reads_a_variable_is_an_effect():
    counter = tf.Variable(0.0)

    def print_both(x):
        tf.print(x, counter)
        return x + counter

    def print_some(x):
        return tf.cond(x > 0.0, lambda: print_both(x), lambda: x)

    assert "only one rank" in difference(calling_first(print_some))
