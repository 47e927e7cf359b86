"""Grappler, profiler sessions, tuning budgets and folders of the user."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import models
import tensorflow as tf
from harness import FOLDER, RANK, SIZE, restart_engine

import tf_libra
import tf_libra.elastic
from failures.common import PLAN_FILE, cases, one_step, other, shard


@cases
def grappler_switched_off() -> Any:
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    try:
        saved = {}
        for alone in (True, False):
            model = models.HandWritten("float64", "sgd")
            step = tf.function(model.step)
            if not alone:
                step = tf_libra.optimize(
                    tf_libra.strategies.Libra(threads=(1, 2)), max_tuning_steps=9
                )(step)
            for number in range(12):
                joint = models.batch(number, SIZE, "float64")
                step(*(joint if alone else models.part(joint, RANK, SIZE)))
                if not alone and number == 0:
                    first_phase = str(step.phase)
            who = "alone" if alone else "ours"
            saved |= {f"{who}/{k}": v for k, v in model.weights().items()}
        cases.save(**saved)
        return {"phase": first_phase, "plan": step.plan}
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


@cases
def profiler_session_of_the_user() -> Any:
    """A session is open during all of tuning; it must end as the user wants it to."""
    folder = FOLDER / f"user-profile.{RANK}"
    model = models.HandWritten("float32", "sgd")
    step = tf_libra.optimize(tf_libra.strategies.Libra(threads=(1, 2)), max_tuning_steps=9)(
        tf.function(model.step)
    )
    step(*shard())
    tf.profiler.experimental.start(str(folder))
    for number in range(1, 14):
        step(*shard(number))
    tf.profiler.experimental.stop()
    return {
        "phase": str(step.phase),
        "traces": len(list(folder.rglob("*.xplane.pb"))),
        "notes": list(step.plan.notes),
    }


@cases
def profiles_of_the_user_that_end() -> Any:
    """Profiles by hand and graphs that are collected: tuning goes on after them."""
    model = models.HandWritten("float32", "sgd")
    step = tf_libra.optimize(tf_libra.strategies.Libra(threads=(1, 2)), max_tuning_steps=40)(
        tf.function(model.step)
    )
    folder = FOLDER / f"user-profiles.{RANK}"
    phases = []
    for number in range(60):
        if number == 0:
            tf.summary.trace_on(graph=True, profiler=False)
        if number in (3, 9):
            tf.profiler.experimental.start(str(folder / str(number)))
        step(*shard(number))
        phases.append(str(step.phase))
        if number == 1:
            tf.summary.trace_off()
        if number in (5, 13):
            tf.profiler.experimental.stop()
    return {
        "phases": phases,
        "traces": len(list(folder.rglob("*.xplane.pb"))),
        "profile": None if RANK or step.profile is None else len(step.profile.tensors),
        "notes": list(step.plan.notes),
    }


@cases
def short_budget() -> Any:
    """Five steps are not enough to measure everything."""
    model = models.HandWritten("float32", "sgd")
    step = tf_libra.optimize("libra", max_tuning_steps=5)(tf.function(model.step))
    phases = []
    for number in range(7):
        step(*shard(number))
        phases.append(str(step.phase))
    return {"phases": phases, "notes": list(step.plan.notes), "explained": step.explain()}


@cases
def no_seconds_at_all() -> Any:
    """The budget of time is over before the first step."""
    model = models.HandWritten("float32", "sgd")
    step = tf_libra.optimize("libra", tuning=tf_libra.Tuning(max_seconds=1e-6))(
        tf.function(model.step)
    )
    step(*shard())
    step(*shard(1))
    return {"phase": str(step.phase), "notes": list(step.plan.notes)}


def hand_written() -> Any:
    return models.HandWritten("float32", "sgd")


def next_job(
    num_steps: int, make: Callable[[], Any] = hand_written, dtype: str = "float32", **o: Any
) -> tuple[list[str], Any]:
    """Trains under a new engine, as the next job would, and at least until a plan is active.

    Returns:
        The phases of the first `num_steps` steps, and the optimized step.
    """
    restart_engine()
    model = make()
    strategy = tf_libra.strategies.Libra(threads=(1, 2))
    unlimited = tf_libra.Tuning(max_seconds=1e6)
    step = tf_libra.optimize(strategy, tuning=unlimited, **o)(tf.function(model.step))
    phases: list[str] = []
    for number in range(num_steps):
        step(*shard(number, dtype))
        phases.append(str(step.phase))
    return phases, step


def finish(step: Any) -> None:
    """Trains until a plan is active."""
    for number in range(200):
        if str(step.phase) == "run":
            return
        step(*shard(number))


@cases
def cache_and_log_folders() -> Any:
    cache, logs = FOLDER / f"cache.{RANK}", FOLDER / f"log.{RANK}"
    result: dict[str, Any] = {}

    phases, step = next_job(5, cache_dir=cache, max_tuning_steps=4)
    result["cut short"] = {"phases": phases, "kept": len(list(cache.glob("*")))}

    phases, step = next_job(1, cache_dir=cache, logdir=logs)
    finish(step)
    result["first"] = {
        "phases": phases,
        "plan": step.plan.to_json(),
        "profile": step.profile.to_json(),
        "cost_model": step.cost_model.to_json(),
        "tuned": step.tuned and step.tuned.to_json(),
    }
    result["kept"] = sorted(path.name for path in cache.glob("*"))
    result["logged"] = {path.name: path.read_text() for path in logs.glob("*.json")}

    phases, step = next_job(2, cache_dir=cache)
    result["second"] = {
        "phases": phases,
        "plan": step.plan and step.plan.to_json(),
        "profile": step.profile and step.profile.to_json(),
        "cost_model": step.cost_model and step.cost_model.to_json(),
        "tuned": step.tuned and step.tuned.to_json(),
        "explained": step.explain(),
    }

    def first_phase(**options: Any) -> str:
        phases, _ = next_job(1, cache_dir=cache, **options)
        return phases[0]

    def float64() -> Any:
        return models.HandWritten("float64", "sgd")

    result["another model"] = first_phase(make=float64, dtype="float64")
    for number, text in enumerate(["{", "[]", '{"plan": "{}"}', "[" * 100_000, '{"plan": 3}']):
        for path in cache.glob("*"):
            path.write_text(text)
        result[f"corrupt {number}"] = first_phase()
    # Kept plans of something else under the right name.
    given = other()
    foreign = {
        "wrong plan": models.plan_of(models.MixedNames().variables, SIZE, [0, 2], [1]),
        "plan for 3 workers": other(num_workers=3),
        "too many threads": other(
            groups=(replace(given.groups[0], num_threads=9), *given.groups[1:])
        ),
    }
    for name, plan in foreign.items():
        for path in cache.glob("*"):
            path.write_text(json.dumps({"plan": plan.to_json()}))
        result[name] = first_phase()
    return result


@cases
def folders_that_cannot_be_written() -> Any:
    """The plan is active all the same: a full disk must not end the training."""
    blocked = FOLDER / f"blocked.{RANK}"
    blocked.write_text("a file where a folder should be")
    _, step = next_job(1, cache_dir=blocked / "cache", logdir=blocked / "log")
    finish(step)
    step(*shard())
    return str(step.phase)


@cases
def log_folder_of_a_given_plan() -> Any:
    logs = FOLDER / f"given.{RANK}"
    one_step(plan=PLAN_FILE, logdir=logs)
    return {path.name: path.read_text() for path in logs.glob("*.json")}
