"""Trains fresh models under every strategy and under random plans, and alone on the joint batch."""

import itertools
from functools import partial
from typing import Any

import horovod.tensorflow as hvd
import models
import tensorflow as tf
from harness import RANK, SIZE, Cases

import tf_libra
from tf_libra import strategies

MODELS = {"hand": models.HandWritten, "keras": models.Keras}
# With threads (1, 2): 8 steps measure, 4 sample; the plan is in force from step 13 on.
TUNING_STEPS = 12
STEPS_UNDER_PLAN = 4
CHECKPOINT = 5
RANDOM_PLANS = 4

cases = Cases()


def train(step: Any, dtype: str, num_steps: int, alone: bool) -> list[float]:
    losses = []
    for number in range(num_steps):
        joint = models.batch(number, SIZE, dtype)
        inputs, labels = joint if alone else models.part(joint, RANK, SIZE)
        losses.append(float(step(inputs, labels)))
    return losses


def compare(kind: str, dtype: str, optimizer: str, num_steps: int, **options: Any) -> Any:
    """Saves weights after 5 steps and at the end, of this job and of one process alone."""
    make = partial(MODELS[kind], dtype, optimizer)
    seed = options.pop("plan_seed", None)
    saved = {}
    for alone in (True, False):
        model = make()
        if alone:
            step = tf.function(model.step)
        else:
            if seed is not None:
                trained = getattr(model, "model", None)
                variables = model.variables if trained is None else trained.trainable_variables
                options["plan"] = models.random_plan(variables, SIZE, seed)
            step = tf_libra.optimize(**options)(tf.function(model.step))
        who = "alone" if alone else "ours"
        train(step, dtype, CHECKPOINT, alone)
        saved |= {f"{who}/5/{name}": value for name, value in model.weights().items()}
        for number in range(CHECKPOINT, num_steps):
            joint = models.batch(number, SIZE, dtype)
            step(*(joint if alone else models.part(joint, RANK, SIZE)))
        saved |= {f"{who}/end/{name}": value for name, value in model.weights().items()}
    cases.save(**saved)
    return {
        "phase": str(step.phase),
        "plan": None if step.plan is None else step.plan.to_json(),
        "traces": step._session._call.experimental_get_tracing_count(),
    }


def add(name: str, *args: Any, **options: Any) -> None:
    cases.add(name, partial(compare, *args, **options))


def tuned(name: str) -> dict[str, Any]:
    """A strategy with few threads to try, and few steps to try them in."""
    several = hasattr(strategies.BY_NAME[name], "threads")
    return {
        "strategy": name,
        "threads": (1, 2) if several else 2,
        "max_tuning_steps": TUNING_STEPS,
    }


if __name__ == "__main__":
    hvd.init()
    for index, name in enumerate(strategies.BY_NAME):
        # Both kinds of model and optimizer meet every strategy, in one dtype or the other.
        kind, other = itertools.islice(itertools.cycle(MODELS), index, index + 2)
        steps = TUNING_STEPS + STEPS_UNDER_PLAN
        add(f"{name}-float64-sgd", kind, "float64", "sgd", steps, **tuned(name))
        add(f"{name}-float64-adam", other, "float64", "adam", steps, **tuned(name))
        add(f"{name}-float32-sgd", other, "float32", "sgd", CHECKPOINT, **tuned(name))
    for seed in range(RANDOM_PLANS):
        kind, other = ("hand", "keras") if seed % 2 else ("keras", "hand")
        add(f"random{seed}-float64-sgd", kind, "float64", "sgd", CHECKPOINT, plan_seed=seed)
        add(f"random{seed}-float64-adam", other, "float64", "adam", CHECKPOINT, plan_seed=seed)
        add(f"random{seed}-float32-sgd", other, "float32", "sgd", CHECKPOINT, plan_seed=seed)
    cases.run()
