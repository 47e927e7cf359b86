"""All-reduces that a step must have executed."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from harness import RANK

import tf_libra
from tf_libra.runtime.training_step import TrainingFunction
from variable_cases.common import BRIEFLY, LAST, bits, cases, hand_written, shard


class Forgetful:
    """A graph that was rewritten so that it reduces nothing: it returns, and is wrong."""

    def __init__(self, marked: Any, plain: Any, forgets: Callable[[], bool]) -> None:
        self._marked, self._plain, self._forgets = marked, plain, forgets

    def __getattr__(self, name: str) -> Any:
        return getattr(self._marked, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return (self._plain if self._forgets() else self._marked)(*args, **kwargs)


def forgets(at: int, ranks: tuple[int, ...]) -> Any:
    model = hand_written(seed=1)
    function = tf.function(model.step)
    step = tf_libra.optimize(**BRIEFLY)(function)
    number = 0
    training: TrainingFunction = step._training
    training._tracer.function = Forgetful(
        training._tracer.function, function, lambda: number == at and RANK in ranks
    )
    for number in range(6):
        inputs, labels = shard(number)
        step(*((inputs[:2], labels[:2]) if number == 5 else (inputs, labels)))


@cases
def reduces_nothing_at_first() -> Any:
    forgets(0, (0, 1))


@cases
def reduces_nothing_later() -> Any:
    forgets(4, (0, 1))


@cases
def reduces_nothing_for_a_new_shape() -> Any:
    forgets(5, (0, 1))


@cases
def reduces_nothing_on_one_rank() -> Any:
    forgets(4, (LAST,))


def several(function: Callable[..., Any]) -> Any:
    """A graph of as many steps as it gets batches, as `steps_per_execution` makes one."""
    once = tf.function(function)

    def steps(batches: Any) -> None:
        for inputs, labels in batches:
            once(inputs, labels)

    return tf_libra.optimize(**BRIEFLY)(tf.function(steps))


def train_several(step: Any, rounds: int = 2, each: int = 3) -> None:
    """Single steps until a plan is settled, and then several in one graph."""
    number = 0
    while not step.settled:
        step((shard(number),))
        number += 1
    for _ in range(rounds):
        step.several(each, tuple(shard(number + i) for i in range(each)))
        number += each


@cases
def one_of_several_steps_reduces_nothing() -> Any:
    model = hand_written(seed=1)
    step = several(model.step)
    training: TrainingFunction = step._training
    marked = training._tracer.function

    def all_but_the_last(batches: Any) -> None:
        marked(batches[:-1])
        model.step(*batches[-1])

    training._tracer.function = Forgetful(marked, all_but_the_last, lambda: step.settled)
    train_several(step)


@cases
def reduces_under_a_condition() -> Any:
    """As with backward_passes_per_step: every other step all-reduces, and that is right.

    Then in graphs of three steps, and of one, that may have no such step at all.
    """
    model = hand_written(seed=1)
    count = tf.Variable(0, trainable=False, name="count")

    @tf.function
    def update(inputs: Any, labels: Any) -> Any:
        return model.step(inputs, labels)

    def step(inputs: Any, labels: Any) -> Any:
        count.assign_add(1)
        return tf.cond(count % 2 == 0, lambda: update(inputs, labels), lambda: 0.0)

    stepping = several(step)
    train_several(stepping)
    for number in range(3):
        stepping.several(1, (shard(number),))
    return bits(model.variables)


@cases
def reduces_partly_under_a_condition() -> Any:
    """A critic that is trained in every step, and a generator in every third."""
    critic, generator = hand_written(seed=1), hand_written(seed=2)
    count = tf.Variable(0, trainable=False, name="count")

    def step(inputs: Any, labels: Any) -> Any:
        critic.step(inputs, labels)
        count.assign_add(1)
        tf.cond(count % 3 == 0, lambda: generator.step(inputs, labels), lambda: 0.0)

    train_several(several(step))
    return bits([*critic.variables, *generator.variables])
