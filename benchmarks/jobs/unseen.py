"""Tunes as training does, and then runs plans that tuning has not seen, in turns.

Rank 0's tuner goes on after its conclusion: it yields experiments under the drawn plans, which all
ranks follow as they do while they tune.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import numpy as np

import tf_libra
from benchmarks.jobs.job import TruthJob as Job
from benchmarks.jobs.training import begin
from tf_libra import options as options_lib
from tf_libra.model.plan import Plan
from tf_libra.model.profile import BackwardProfile
from tf_libra.profiling.samples import measured_timeline
from tf_libra.simulation import simulate
from tf_libra.tuning import (
    Conclusion,
    Experiment,
    Observation,
    Phase,
    Tuner,
    random_plans,
    tune,
)

THREADS = (1, 2, 3, 4)
NUM_GROUPS = (1, 12)


def run(job: Job) -> None:
    """Measures; rank 0 writes {"plans": [...], "settings": {...}} to `job.output` as JSON."""
    trained = begin(job)
    found: dict[str, Any] = {}
    options = options_lib.resolve({"strategy": "libra"})
    step = tf_libra.Optimized(trained.step(list), options, _tuner(job, found))
    while step.plan is None:
        step(*trained.batch)
    if hvd.rank() == 0:
        settings = {
            "parameters": trained.num_parameters,
            "inter_op_threads": job.inter_op_threads,
            "cost_model": json.loads(found["conclusion"].cost_model.to_json()),
            "tuning_steps": found["tuning_steps"],
        }
        Path(job.output).write_text(json.dumps({"plans": found["plans"], "settings": settings}))


def _tuner(job: Job, found: dict[str, Any]) -> Callable[..., Tuner]:
    def tuner(*args: Any, **kwargs: Any) -> Tuner:
        seen: set[str] = set()
        conclusion: Conclusion = yield from _remembering(tune(*args, **kwargs), seen, found)
        found["conclusion"] = conclusion
        if conclusion.profile is None or conclusion.rest_seconds is None:
            raise ValueError(f"nothing could be predicted: {'; '.join(conclusion.notes)}")
        plans = drawn(conclusion.profile, conclusion.plan.num_workers, job, seen)
        found["plans"] = yield from _measured(plans, conclusion, job)
        return conclusion

    return tuner


def _remembering(tuning: Tuner, seen: set[str], found: dict[str, Any]) -> Tuner:
    """The same experiments; keeps which plans they ran under, and how many there were."""
    observation: Observation | None = None
    found["tuning_steps"] = 0
    while True:
        try:
            experiment = tuning.send(observation)
        except StopIteration as finished:
            return finished.value
        seen.add(experiment.plan.fingerprint)
        found["tuning_steps"] += 1
        observation = yield experiment


def drawn(profile: BackwardProfile, num_workers: int, job: Job, seen: set[str]) -> list[Plan]:
    """Plans that differ in number and sizes of groups and in threads, none of them in `seen`."""
    count = job.plans + len(seen)
    plans = random_plans(profile, THREADS, num_workers, count, job.seed, NUM_GROUPS)
    return [plan for plan in plans if plan.fingerprint not in seen][: job.plans]


def _measured(plans: Sequence[Plan], conclusion: Conclusion, job: Job) -> Any:
    """Runs the plans in turns; yields experiments and returns what came of each plan."""
    for plan in plans:
        yield Experiment(Phase.RACE, plan, traced=False, is_first=True)
    random = np.random.default_rng(job.seed)
    steps: list[list[float]] = [[] for _ in plans]
    backwards: list[list[float]] = [[] for _ in plans]
    for _ in range(job.rounds):
        # Traced steps take longer: they tell of backward alone.
        for traced in (False, True):
            for index in random.permutation(len(plans)).tolist():
                seen = yield Experiment(Phase.RACE, plans[index], traced)
                if not traced:
                    steps[index].append(seen.seconds)
                elif seen.production is not None:
                    timeline = measured_timeline(seen.records, seen.production)
                    backwards[index].append(timeline.backward_seconds)
    assert conclusion.profile is not None and conclusion.cost_model is not None
    return [
        {
            "plan": json.loads(plan.to_json()),
            "predicted_backward_seconds": simulate(
                conclusion.profile, plan, conclusion.cost_model
            ).backward_seconds,
            "backward_seconds": backwards[index],
            "predicted_step_seconds": conclusion.predicted_step(plan),
            "step_seconds": steps[index],
        }
        for index, plan in enumerate(plans)
    ]
