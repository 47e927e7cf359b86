"""Steps of several traces, and several decorated functions."""

from typing import Any

import models
import tensorflow as tf
from harness import RANK, SIZE

from script_cases.common import (
    DTYPE,
    LAST,
    PLAN_FILE,
    STEPS,
    Adversaries,
    Share,
    Wrap,
    batch,
    cases,
    compared,
    descend,
    hand_written,
    noise_of,
    optimized,
    part,
    train_steps,
    values,
    variable,
)


@cases
def short_last_batch() -> Any:
    def train(wrap: Wrap, share: Share) -> Any:
        model = hand_written()
        step = wrap(model.step)
        for number, shard in enumerate([4, 4, 3, 4, 4, 3, 1]):
            step(*share(batch(number, shard)))
        traces = (
            step._training._tracer.function.experimental_get_tracing_count() if share is part else 0
        )
        reported = {"traces": traces, "plan": share is part and step.plan.fingerprint}
        return model.variables, reported

    variables = hand_written().variables
    given = models.plan_of(variables, SIZE, [0, 2, 4, 6], [1, 2, 1])
    return {**compared(train, plan=given), "given": given.fingerprint}


@cases
def another_batch_size_on_each_rank() -> Any:
    """Each rank traces shapes of its own; what is averaged has the same ones everywhere."""
    model = hand_written("sgd")
    step = optimized()(model.step)
    for number in range(STEPS):
        inputs, labels = part(batch(number))
        rows = 2 if RANK == LAST and number % 2 else 4
        step(inputs[:rows], labels[:rows])
    cases.save(**values(model.variables))


class Switched(models.HandWritten):
    """Computes other gradients if the switch requests them."""

    def __init__(self) -> None:
        super().__init__(DTYPE, "sgd")
        self.extra = variable([models.FEATURES, models.CLASSES], "extra", seed=3)
        self.larger = variable([3 * models.FEATURES], "w0", seed=4)

    def step(self, inputs: Any, labels: Any, switch: str = "") -> Any:
        chosen = list(self.variables)
        with tf.GradientTape() as tape:
            loss = self.loss(inputs, labels)
            if switch == "extra":
                chosen.append(self.extra)
                loss += tf.reduce_sum((inputs @ self.extra) ** 2) / len(inputs)
            if switch == "larger":
                chosen[0] = self.larger
                loss += tf.reduce_sum(self.larger**2)
            if switch == "none":
                chosen.append(self.extra)
        gradients = tape.gradient(loss, chosen)
        there = [i for i, gradient in enumerate(gradients) if gradient is not None]
        descend([chosen[i] for i in there], [gradients[i] for i in there])
        return loss


@cases
def variables_created_late() -> Any:
    def train(wrap: Wrap, share: Share) -> Any:
        model = Switched()
        step = wrap(model.step)
        phases = []
        for number in range(2 * STEPS):
            switch = "extra" if number >= STEPS and number != STEPS + 2 else ""
            step(*share(batch(number)), switch)
            if share is part:
                phases.append([str(step.phase), len(step.plan.tensor_names) if step.plan else 0])
        return [*model.variables, model.extra], phases

    return compared(train)


def switched_on_one_rank(switch: str) -> Any:
    model = Switched()
    step = optimized()(model.step)
    for number in range(STEPS):
        step(*part(batch(number)), switch if RANK == LAST and number == STEPS - 1 else "")


@cases
def one_rank_alone_has_another_variable() -> Any:
    switched_on_one_rank("extra")


@cases
def one_rank_alone_has_another_size() -> Any:
    switched_on_one_rank("larger")


@cases
def one_rank_alone_has_no_gradient() -> Any:
    model = Switched()
    step = optimized()(model.step)
    train_steps(step, part)
    step(*part(batch(STEPS)), "none" if RANK == LAST else "extra")


@cases
def one_rank_alone_has_no_gradient_at_first() -> Any:
    model = Switched()
    optimized()(model.step)(*part(batch(0)), "none" if RANK == LAST else "extra")


@cases
def generator_and_discriminator() -> Any:
    def train(wrap: Wrap, share: Share) -> Any:
        model = Adversaries()
        judge, generator = wrap(model.judge_step), wrap(model.generator_step)
        for number in range(STEPS):
            real, noise = share((batch(number)[0], noise_of(number)))
            judge(real, noise)
            if number % 2:
                generator(noise)
        return model.variables, None

    return compared(train)


@cases
def several_optimizers_in_one_step() -> Any:
    def train(wrap: Wrap, share: Share) -> Any:
        model = Adversaries()
        step = wrap(model.both)
        for number in range(STEPS):
            step(*share((batch(number)[0], noise_of(number))))
        return model.variables, None

    return compared(train)


def crossed(names: tuple[str, str], rounds: int) -> Any:
    """Two functions under one plan, which one rank calls in another order after some rounds."""
    steps = []
    for name in names:
        model = models.HandWritten("float32", "sgd")

        def step(inputs: Any, labels: Any, model: Any = model) -> Any:
            return model.step(inputs, labels)

        step.__qualname__ = name
        steps.append(optimized(plan=PLAN_FILE)(step))
    shard = models.part(models.batch(0, SIZE, "float32"), RANK, SIZE)
    for _ in range(rounds):
        for step in steps:
            step(*shard)
    for step in steps[::-1] if RANK == LAST else steps:
        step(*shard)


@cases
def two_functions_in_another_order() -> Any:
    crossed(("left_step", "right_step"), 2)


@cases
def two_functions_in_another_order_at_first() -> Any:
    crossed(("upper_step", "lower_step"), 0)


@cases
def two_functions_of_one_name_in_another_order() -> Any:
    crossed(("twin_step", "twin_step"), 1)


@cases
def second_function_begins_on_one_rank_alone() -> Any:
    first, second = hand_written("sgd"), hand_written("sgd")

    def early_step(inputs: Any, labels: Any) -> Any:
        return first.step(inputs, labels)

    def late_step(inputs: Any, labels: Any) -> Any:
        return second.step(inputs, labels)

    early, late = optimized()(early_step), optimized()(late_step)
    train_steps(early, part)
    (late if RANK == LAST else early)(*part(batch(STEPS)))
