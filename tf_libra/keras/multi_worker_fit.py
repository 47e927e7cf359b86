"""Training and evaluation of Keras 3 models under a `MultiWorkerMirroredStrategy`.

Keras' `fit` fails with several workers: it passes a whole batch to `strategy.reduce` to learn its
shapes, and requests the mean of scalars along their first axis. This module replaces both.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf


def is_of_workers(model: keras.Model) -> bool:
    """Returns whether a model was made in the scope of a `MultiWorkerMirroredStrategy`."""
    return isinstance(model.distribute_strategy, tf.distribute.MultiWorkerMirroredStrategy)


def in_replicas(model: keras.Model, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns a step that runs in every replica and returns the mean of their results.

    Args:
        model: of any strategy; under the default strategy the step is returned unchanged.
        step: for example `model.train_step`.
    """
    if not is_of_workers(model):
        return step
    strategy = model.distribute_strategy

    def mean(value: Any) -> Any:
        return strategy.reduce(tf.distribute.ReduceOp.MEAN, value, axis=None)

    def run(data: Any) -> Any:
        return keras.tree.map_structure(mean, strategy.run(step, args=(data,)))

    return run


def prepare(model: keras.Model) -> None:
    """Makes Keras build and evaluate a model of several workers."""
    if not is_of_workers(model):
        return
    model._maybe_symbolic_build = _build_function(model)
    model.make_test_function = _test_function_maker(model)
    model.test_function = None


def _build_function(model: keras.Model) -> Callable[..., None]:
    strategy = model.distribute_strategy

    def local(value: Any) -> Any:
        if isinstance(value, tf.distribute.DistributedValues):
            return strategy.experimental_local_results(value)[0]
        return value

    def build(iterator: Any = None, data_batch: Any = None) -> None:
        for _, _, batches in iterator if iterator is not None else ():
            data_batch = next(batches)
            break
        with strategy.scope():
            model._symbolic_build(data_batch=keras.tree.map_structure(local, data_batch))

    return build


def _test_function_maker(model: keras.Model) -> Callable[..., Any]:
    def make_test_function(force: bool = False) -> Any:
        if model.test_function is not None and not force:
            return model.test_function
        run = in_replicas(model, model.test_step)

        @tf.function(reduce_retracing=True, autograph=False)
        def step(data: Any) -> Any:
            return run(without_optionals(data))

        def test_function(iterator: Any) -> Any:
            batches = tuple(take(iterator, model.steps_per_execution))
            if not batches:
                raise StopIteration
            outputs = None
            for data in batches:
                outputs = step(data)
            return outputs

        model.test_function = test_function
        return test_function

    return make_test_function


def take(iterator: Iterable[Any], count: int) -> Iterator[Any]:
    """Yields at most the next `count` batches."""
    if not isinstance(iterator, tf.data.Iterator | tf.distribute.DistributedIterator):
        yield from (data for _, data in zip(range(count), iterator, strict=False))
        return
    is_distributed = isinstance(iterator, tf.distribute.DistributedIterator)
    for _ in range(count):
        batch = _next_distributed(iterator) if is_distributed else iterator.get_next_as_optional()
        if not batch.has_value():
            return
        yield batch.get_value()


# All workers exchange whether they have a batch, which is faster in a graph.
@tf.function(reduce_retracing=True, autograph=False)
def _next_distributed(iterator: Any) -> Any:
    return iterator.get_next_as_optional()


def without_optionals(data: Any) -> Any:
    """Returns a batch with None for each empty `Optional`, by which tf.data represents None."""
    return keras.tree.map_structure(
        lambda value: None if isinstance(value, tf.experimental.Optional) else value, data
    )
