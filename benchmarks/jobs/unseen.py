"""Tunes as training does, and then runs plans that tuning has not seen, in turns.

Rank 0's tuner goes on after its conclusion: it yields experiments under the drawn plans, which all
ranks follow as they do while they tune. Among them are steps under plans that tuning has sampled:
what they take now and took then tells how much slower the machine has become since, and what they
take in one round and in another how its pace varies.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import tf_libra
from benchmarks.jobs.job import TruthJob as Job
from benchmarks.jobs.training import begin
from tf_libra import config, strategies
from tf_libra.autotune import (
    Phase,
    TensorSpec,
    Trial,
    TrialResult,
    Tuner,
    TuningResult,
    random_plans,
    tune,
)
from tf_libra.autotune.calibration import Calibration
from tf_libra.autotune.concurrent_all_reduces import max_lanes, with_contention
from tf_libra.autotune.cross_validation import steady_state_samples
from tf_libra.autotune.step_times import StepTimes, TimedStep, step_times
from tf_libra.cost_model import CostModel, prediction_errors
from tf_libra.simulation import simulate
from tf_libra.specs.plan import Plan

THREADS = (1, 2, 3, 4)
NUM_GROUPS = (1, 12)
# Traced steps in a round, which tell where backward begins: that does not depend on the plan.
TRACED_STEPS = 3


def run(job: Job) -> None:
    """Measures; rank 0 writes the document of `benchmarks.truth` to `job.output`, unjudged."""
    trained = begin(job)
    found: dict[str, Any] = {}
    options = config.resolve({"strategy": job.strategy})
    step = tf_libra.Optimized(trained.step(list), options, _tuner(job, found))
    while step.plan is None:
        step(*trained.batch)
    if trained.ranks.rank == 0:
        settings = {
            "parameters": trained.num_parameters,
            "inter_op_threads": job.inter_op_threads,
            "cost_model": json.loads(found["conclusion"].cost_model.to_json()),
            "tuning_steps": found["tuning_steps"],
            "contention": found["conclusion"].contention,
        }
        measured = {key: found[key] for key in ("plans", "drift", "pace", "measuring", "fits")}
        Path(job.output).write_text(json.dumps(measured | {"settings": settings}))


def _tuner(job: Job, found: dict[str, Any]) -> Callable[..., Tuner]:
    def tuner(
        tensors: Sequence[TensorSpec], strategy: strategies.Strategy, *args: Any, **kwargs: Any
    ) -> Tuner:
        seen: dict[str, Plan] = {}
        sampled: list[TimedStep] = []
        conclusion: TuningResult = yield from _remembering(
            tune(tensors, strategy, *args, **kwargs), seen, sampled, found
        )
        found["conclusion"] = conclusion
        if conclusion.rest_seconds is None:
            raise ValueError(f"nothing could be predicted: {'; '.join(conclusion.notes)}")
        again = yield from tune(tensors, _without_trials(strategy), *args, **kwargs)
        if conclusion.cost_model is None or again.cost_model is None:
            raise ValueError(f"no model could be fitted twice: {'; '.join(again.notes)}")
        models = [conclusion.cost_model, again.cost_model]
        found["fits"] = rates_of_fits(models, strategy.allowed_threads)
        lanes = max_lanes(strategy, kwargs["runs_streams"])
        plans = drawn(conclusion, strategy, lanes, job, set(seen))
        found["plans"], pace = yield from _measured(plans, step_times(sampled), conclusion, job)
        found.update(pace)
        return conclusion

    return tuner


def _remembering(
    tuning: Tuner, seen: dict[str, Plan], sampled: list[TimedStep], found: dict[str, Any]
) -> Tuner:
    """The same experiments; keeps their plans, their number, and the steps that a fit sees."""
    observation: TrialResult | None = None
    found["tuning_steps"], found["first_seconds"], begin = 0, [], time.monotonic()
    while True:
        try:
            experiment = tuning.send(observation)
        except StopIteration as finished:
            found.setdefault("measuring", _measuring(found, begin))
            return finished.value
        if experiment.phase not in (Phase.MEASURE, Phase.SAMPLE):
            found.setdefault("measuring", _measuring(found, begin))
        plan = seen.setdefault(experiment.plan.fingerprint, experiment.plan)
        found["tuning_steps"] += 1
        asked = time.monotonic()
        observation = yield experiment
        if experiment.is_first:
            found["first_seconds"].append(time.monotonic() - asked)
        is_usual = not experiment.traced and not experiment.is_first and plan.num_streams == 1
        if experiment.phase is Phase.SAMPLE and is_usual and observation is not None:
            sampled.append(TimedStep(plan, observation.called_ns, observation.records))


def _without_trials(strategy: strategies.Strategy) -> strategies.Strategy:
    """A strategy that is fitted to the same steps, and ends when it has planned."""
    return strategies.Libra(threads=strategy.allowed_threads, race=False)


def rates_of_fits(models: Sequence[CostModel], threads: Sequence[int]) -> dict[str, Any]:
    """Rates of computation and of all-reduces under each model, by thread counts.

    Args:
        models: fitted one after the other.
        threads: thread counts.
    """
    rates = {
        "compute": [model.compute_rate(threads).tolist() for model in models],
        "overlapped": [model.overlapped_rate(threads).tolist() for model in models],
        "exclusive": [model.exclusive_rate(threads).tolist() for model in models],
    }
    return {"threads": list(threads), "rates": rates}


def _measuring(found: dict[str, Any], begin: float) -> dict[str, Any]:
    return {
        "steps": found["tuning_steps"],
        "seconds": time.monotonic() - begin,
        "first_seconds": list(found["first_seconds"]),
    }


def drawn(
    conclusion: TuningResult, strategy: strategies.Strategy, lanes: int, job: Job, seen: set[str]
) -> list[Plan]:
    """Plans that differ in number and sizes of groups and in threads, none of them in `seen`.

    Every other one is on two streams, where it was measured what these cost each other.

    Args:
        conclusion: of tuning, with a profile.
        strategy: which has tuned.
        lanes: that the engine has for its plans.
        job: how many, and by which seed.
        seen: fingerprints of what tuning has run.
    """
    assert conclusion.profile is not None
    threads = THREADS if strategy.chooses_threads else strategy.allowed_threads
    count, num_workers = job.plans + len(seen), conclusion.plan.num_workers
    plans = random_plans(conclusion.profile, threads, num_workers, count, job.seed, NUM_GROUPS)
    if conclusion.contention is not None:
        random = np.random.default_rng(job.seed)
        plans[1::2] = [_on_two_streams(plan, lanes, random) for plan in plans[1::2]]
        plans = [with_contention(plan, conclusion.contention) for plan in plans]
    # For as many concurrent threads as there are lanes the model may predict nothing.
    predicted = (plan for plan in plans if conclusion.predicted(plan) is not None)
    unlike = {plan.fingerprint: plan for plan in predicted if plan.fingerprint not in seen}
    return list(unlike.values())[: job.plans]


def _on_two_streams(plan: Plan, lanes: int, random: np.random.Generator) -> Plan:
    """The groups on either stream by chance, as few threads each as there are lanes for."""
    streams = random.integers(2, size=len(plan.groups)).tolist()
    streams[-2:] = [1, 0][-len(streams) :]  # so that there are two, where there are two groups
    groups = tuple(
        replace(group, stream=stream, num_threads=min(group.num_threads, max(lanes // 2, 1)))
        for group, stream in zip(plan.groups, streams, strict=True)
    )
    return replace(plan, groups=groups)


def _measured(
    plans: Sequence[Plan], controls: Sequence[StepTimes], conclusion: TuningResult, job: Job
) -> Any:
    """Runs the plans in turns; yields experiments, returns what came of each, drift and pace.

    Args:
        plans: not seen by tuning.
        controls: of the sampled plans, as the model was fitted to them.
        conclusion: of tuning.
        job: how many rounds.
    """
    running = [*plans, *(control.plan for control in controls)]
    for plan in running:
        yield Trial(Phase.RACE, plan, traced=False, is_first=True)
    random = np.random.default_rng(job.seed)
    steps: list[list[float]] = [[] for _ in running]
    ends: list[list[float]] = [[] for _ in plans]
    ready: list[list[float]] = [[] for _ in plans]
    starts: list[tuple[int, float]] = []
    timed: list[TimedStep] = []
    for _ in range(job.rounds):
        for index in random.permutation(len(running)).tolist():
            seen = yield Trial(Phase.RACE, running[index], traced=False)
            steps[index].append(seen.seconds)
            if index < len(plans):
                last_ns = max(record.finished_ns for record in seen.records)
                ends[index].append((last_ns - seen.called_ns[0]) * 1e-9)
                ready[index].append(_first_ready(seen))
                timed.append(TimedStep(running[index], seen.called_ns, seen.records))
        for index in random.permutation(len(plans))[:TRACED_STEPS].tolist():
            seen = yield Trial(Phase.RACE, plans[index], traced=True)
            if seen.production is not None:
                start_ns = seen.production.backward_start_ns - seen.called_ns[0]
                starts.append((index, start_ns * 1e-9 / _first_ready(seen)))
    assert conclusion.profile is not None and conclusion.cost_model is not None
    now = np.array(steps[len(plans) :])
    then = np.array([control.seconds for control in controls])
    drift = float(np.median(np.median(now, axis=1) / then))
    pace = np.median(now / np.median(now, axis=1)[:, None], axis=0)
    start = float(np.median([share * np.median(ready[index] / pace) for index, share in starts]))
    half = job.rounds // 2 * len(plans)
    whole, *halves = (
        {step.plan.fingerprint: step for step in step_times(some)}
        for some in (timed, timed[:half], timed[half:])
    )
    all_reduces = {
        fingerprint: _all_reduces(step, [steps[fingerprint] for steps in halves], conclusion, drift)
        for fingerprint, step in whole.items()
        if step.plan.num_streams == 1
    }
    return [
        {
            "plan": json.loads(plan.to_json()),
            "predicted_backward_seconds": drift
            * simulate(conclusion.profile, plan, conclusion.cost_model).backward_seconds,
            # Tracing costs time: of a traced step only the place of backward's start is taken,
            # relative to when its first group was ready. No group is ready before.
            "backward_seconds": (
                np.array(ends[index]) / pace - np.minimum(start, np.array(ready[index]) / pace)
            ).tolist(),
            "predicted_step_seconds": drift * (conclusion.predicted_step(plan) or 0.0),
            "step_seconds": (np.array(steps[index]) / pace).tolist(),
            "all_reduces": all_reduces.get(plan.fingerprint, []),
        }
        for index, plan in enumerate(plans)
    ], {"drift": drift, "pace": pace.tolist()}


def _all_reduces(
    step: StepTimes, halves: Sequence[StepTimes], conclusion: TuningResult, drift: float
) -> list[dict[str, Any]]:
    """Each all-reduce of a plan's step from the arrival of the last rank on, and its prediction.

    Args:
        step: of all rounds.
        halves: of their first and of their second half.
        conclusion: of tuning.
        drift: how many times as long everything takes now.
    """
    profile, model = conclusion.profile, conclusion.cost_model
    assert profile is not None and model is not None
    calibration = Calibration(model, profile, 0.0, conclusion.rest_seconds or 0.0)
    samples = steady_state_samples(calibration, [step])
    errors = prediction_errors(model, samples).tolist() if samples else []
    return [
        {
            "num_bytes": sample.num_bytes,
            "num_threads": sample.num_threads,
            "overlapped_seconds": sample.overlap_seconds,
            "exclusive_seconds": sample.residual_seconds,
            "predicted_seconds": drift * (1 + error) * sample.wall_seconds,
            "noise": abs(float(np.diff([half.sending[sample.group] for half in halves])[0]))
            / sample.wall_seconds,
        }
        for sample, error in zip(samples, errors, strict=True)
    ]


def _first_ready(seen: TrialResult) -> float:
    """Seconds from a step's start until the engine had its first group."""
    return (min(record.enqueued_ns for record in seen.records) - seen.called_ns[0]) * 1e-9
