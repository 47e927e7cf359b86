"""Additions to Keras 3 to train and evaluate a model of a `MultiWorkerMirroredStrategy`.

Its own `fit` fails there as soon as there are several workers: it hands a whole batch to
`strategy.reduce` to learn its shapes, and asks for the mean of scalars along their first axis. Both
are done in another way here; all else is Keras' own.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tf_libra.keras.batches import take, without_optionals


def is_of_workers(model: keras.Model) -> bool:
    """Returns whether a model was made in the scope of a `MultiWorkerMirroredStrategy`."""
    return isinstance(model.distribute_strategy, tf.distribute.MultiWorkerMirroredStrategy)


def in_replicas(model: keras.Model, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A step of a model that every replica takes: what it returns is the mean over them.

    Args:
        model: of any strategy; of the default one the step itself is what is returned.
        step: `model.train_step`, say.
    """
    if not is_of_workers(model):
        return step
    strategy = model.distribute_strategy

    def mean(one: Any) -> Any:
        return strategy.reduce(tf.distribute.ReduceOp.MEAN, one, axis=None)

    def run(data: Any) -> Any:
        return keras.tree.map_structure(mean, strategy.run(step, args=(data,)))

    return run


def prepare(model: keras.Model) -> None:
    """Lets Keras build and evaluate a model of several workers."""
    if not is_of_workers(model):
        return
    model._maybe_symbolic_build = _building(model)
    model.make_test_function = _making_test_function(model)
    model.test_function = None


def _building(model: keras.Model) -> Callable[..., None]:
    strategy = model.distribute_strategy

    def of_this_worker(one: Any) -> Any:
        if isinstance(one, tf.distribute.DistributedValues):
            return strategy.experimental_local_results(one)[0]
        return one

    def build(iterator: Any = None, data_batch: Any = None) -> None:
        for _, _, batches in iterator if iterator is not None else ():
            data_batch = next(batches)
            break
        with strategy.scope():
            model._symbolic_build(data_batch=keras.tree.map_structure(of_this_worker, data_batch))

    return build


def _making_test_function(model: keras.Model) -> Callable[..., Any]:
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
