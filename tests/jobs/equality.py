"""Trains fresh models under every strategy and under random plans, and alone on the joint batch."""

import itertools
import os
from functools import partial
from typing import Any

import horovod.tensorflow as hvd
import models
import numpy as np
import tensorflow as tf
from harness import FOLDER, RANK, SIZE, Cases

import tf_libra
from tf_libra import strategies

MODELS = {"hand": models.HandWritten, "keras": models.Keras}
# With threads (1, 2) 3 + 6 steps measure and 9 sample; the plan is active from step 19 on.
TUNING_STEPS = 18
STEPS_UNDER_PLAN = 4
CHECKPOINT = 5
# Whose first steps are taken in float32, too: without a plan they differ in threads alone.
IN_FLOAT32 = ("wfbp", "libra")
RANDOM_PLANS = 4

# All if none is named.
CHOSEN = os.environ.get("TF_LIBRA_JOB_CASES", "").split()

cases = Cases()
# What one process trains alone, in the order of their first case.
references: dict[tuple[str, str, str, int], None] = {}


def train(step: Any, model: Any, dtype: str, num_steps: int, alone: bool) -> dict[str, Any]:
    """Weights after 5 steps and at the end."""
    saved = {}
    for number in range(num_steps):
        joint = models.batch(number, SIZE, dtype)
        step(*(joint if alone else models.part(joint, RANK, SIZE)))
        if number + 1 == CHECKPOINT:
            saved |= {f"5/{name}": value for name, value in model.weights().items()}
    return saved | {f"end/{name}": value for name, value in model.weights().items()}


def train_alone(kind: str, dtype: str, optimizer: str, num_steps: int) -> None:
    """One process on the joint batches, the same for every strategy."""
    model = MODELS[kind](dtype, optimizer)
    chosen = tf.function(model.step) if kind == "keras" else model.step
    arrays = train(chosen, model, dtype, num_steps, alone=True)
    np.savez(FOLDER / f"{alone_as(kind, dtype, optimizer, num_steps)}.npz", **arrays)


def alone_as(kind: str, dtype: str, optimizer: str, num_steps: int) -> str:
    return f"alone.{kind}.{dtype}.{optimizer}.{num_steps}"


def compare(kind: str, dtype: str, optimizer: str, num_steps: int, **options: Any) -> Any:
    """Saves weights after 5 steps and at the end; says where those of one process alone are."""
    model = MODELS[kind](dtype, optimizer)
    seed = options.pop("plan_seed", None)
    if seed is not None:
        trained = getattr(model, "model", None)
        variables = model.variables if trained is None else trained.trainable_variables
        options["plan"] = models.random_plan(variables, SIZE, seed)
    step = tf_libra.optimize(**options)(tf.function(model.step))
    ours = train(step, model, dtype, num_steps, alone=False)
    cases.save(**ours)
    return {
        "alone": alone_as(kind, dtype, optimizer, num_steps),
        "phase": str(step.phase),
        "plan": None if step.plan is None else step.plan.to_json(),
        "traces": step._training._tracer.function.experimental_get_tracing_count(),
    }


def add(name: str, kind: str, dtype: str, optimizer: str, num_steps: int, **options: Any) -> None:
    if CHOSEN and name not in CHOSEN:
        return
    references[kind, dtype, optimizer, num_steps] = None
    cases.add(name, partial(compare, kind, dtype, optimizer, num_steps, **options))


def tuned(name: str) -> dict[str, Any]:
    """A strategy with few threads to try, and few steps to try them in; of data parallelism."""
    strategy = strategies.Auto(families=()) if name == "auto" else strategies.resolve(name)
    threads = (1, 2) if hasattr(strategies.BY_NAME[name], "threads") else (2,)
    return {
        "strategy": strategy.with_threads(threads),
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
        if name in IN_FLOAT32:
            add(f"{name}-float32-sgd", other, "float32", "sgd", CHECKPOINT, **tuned(name))
    for seed in range(RANDOM_PLANS):
        kind, other = ("hand", "keras") if seed % 2 else ("keras", "hand")
        add(f"random{seed}-float64-sgd", kind, "float64", "sgd", CHECKPOINT, plan_seed=seed)
        add(f"random{seed}-float64-adam", other, "float64", "adam", CHECKPOINT, plan_seed=seed)
        add(f"random{seed}-float32-sgd", other, "float32", "sgd", CHECKPOINT, plan_seed=seed)
    for reference in list(references)[RANK::SIZE]:
        train_alone(*reference)
    cases.run()
