"""Trains fresh models under every strategy and under random plans, and alone on the joint batch."""

import functools
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
# With threads (1, 2) 3 + 6 steps measure and 9 sample; the plan is in force from step 19 on.
TUNING_STEPS = 18
STEPS_UNDER_PLAN = 4
CHECKPOINT = 5
RANDOM_PLANS = 4

cases = Cases()


def train(step: Any, model: Any, dtype: str, num_steps: int, alone: bool) -> dict[str, Any]:
    """Weights after 5 steps and at the end."""
    saved = {}
    for number in range(num_steps):
        joint = models.batch(number, SIZE, dtype)
        step(*(joint if alone else models.part(joint, RANK, SIZE)))
        if number + 1 == CHECKPOINT:
            saved |= {f"5/{name}": value for name, value in model.weights().items()}
    return saved | {f"end/{name}": value for name, value in model.weights().items()}


@functools.cache
def trained_alone(kind: str, dtype: str, optimizer: str, num_steps: int) -> dict[str, Any]:
    """One process on the joint batches, the same for every strategy."""
    model = MODELS[kind](dtype, optimizer)
    return train(tf.function(model.step), model, dtype, num_steps, alone=True)


def compare(kind: str, dtype: str, optimizer: str, num_steps: int, **options: Any) -> Any:
    """Saves weights after 5 steps and at the end, of this job and of one process alone."""
    alone = trained_alone(kind, dtype, optimizer, num_steps)
    model = MODELS[kind](dtype, optimizer)
    seed = options.pop("plan_seed", None)
    if seed is not None:
        trained = getattr(model, "model", None)
        variables = model.variables if trained is None else trained.trainable_variables
        options["plan"] = models.random_plan(variables, SIZE, seed)
    step = tf_libra.optimize(**options)(tf.function(model.step))
    ours = train(step, model, dtype, num_steps, alone=False)
    cases.save(
        **{f"alone/{name}": value for name, value in alone.items()},
        **{f"ours/{name}": value for name, value in ours.items()},
    )
    return {
        "phase": str(step.phase),
        "plan": None if step.plan is None else step.plan.to_json(),
        "traces": step._training._call.experimental_get_tracing_count(),
    }


def add(name: str, *args: Any, **options: Any) -> None:
    cases.add(name, partial(compare, *args, **options))


def tuned(name: str) -> dict[str, Any]:
    """A strategy with few threads to try, and few steps to try them in."""
    several = hasattr(strategies.BY_NAME[name], "threads")
    return {
        "strategy": name,
        "threads": (1, 2) if several else 2,
        "max_tuning_steps": tuning_steps(name),
    }


def tuning_steps(name: str) -> int:
    """Enough to try something: `auto` searches when all else is done."""
    return TUNING_STEPS if strategies.BY_NAME[name].tuned_by != "all" else 4 * TUNING_STEPS


if __name__ == "__main__":
    hvd.init()
    for index, name in enumerate(strategies.BY_NAME):
        # Both kinds of model and optimizer meet every strategy, in one dtype or the other.
        kind, other = itertools.islice(itertools.cycle(MODELS), index, index + 2)
        steps = tuning_steps(name) + STEPS_UNDER_PLAN
        add(f"{name}-float64-sgd", kind, "float64", "sgd", steps, **tuned(name))
        add(f"{name}-float64-adam", other, "float64", "adam", steps, **tuned(name))
        add(f"{name}-float32-sgd", other, "float32", "sgd", CHECKPOINT, **tuned(name))
    for seed in range(RANDOM_PLANS):
        kind, other = ("hand", "keras") if seed % 2 else ("keras", "hand")
        add(f"random{seed}-float64-sgd", kind, "float64", "sgd", CHECKPOINT, plan_seed=seed)
        add(f"random{seed}-float64-adam", other, "float64", "adam", CHECKPOINT, plan_seed=seed)
        add(f"random{seed}-float32-sgd", other, "float32", "sgd", CHECKPOINT, plan_seed=seed)
    cases.run()
