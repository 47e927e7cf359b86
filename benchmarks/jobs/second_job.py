"""A model is searched for, and then a changed one: with what the first has left, and without.

After each search of the changed model all the settings that it has tried run in turns, so that the
duration of their steps is known from adjacent steps.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import numpy as np

import tf_libra
from benchmarks.jobs.job import SecondJob as Job
from benchmarks.jobs.training import begin
from tf_libra import config
from tf_libra.autotune import Phase, Trial, TrialResult, Tuner, tune
from tf_libra.autotune.paired_timing import estimate_paired_timings
from tf_libra.specs.plan import Plan

_STRATEGY = "aiacc"


def run(job: Job) -> None:
    """Measures; rank 0 writes {"helped", "alone"} to `job.output`, see `_searched`."""
    folder = Path(f"{job.output}.cache")
    trained = begin(job)
    first = tf_libra.optimize(_STRATEGY, cache_dir=folder)(trained.step(list))
    while first.plan is None:
        first(*trained.batch)
    found = {}
    changed = begin(dataclasses.replace(job, model=job.changed))
    for name, cached in {"alone": {}, "helped": {"cache_dir": folder}}.items():
        searched: dict[str, Any] = {}
        options = config.resolve({"strategy": _STRATEGY, **cached})
        step = tf_libra.Optimized(changed.step(list), options, _tuner(job, searched))
        while step.plan is None:
            step(*changed.batch)
        found[name] = searched
    if hvd.rank() == 0:
        settings = {"parameters": changed.num_parameters, "changed": job.changed}
        Path(job.output).write_text(json.dumps(found | {"settings": settings}))


def _tuner(job: Job, found: dict[str, Any]) -> Callable[..., Tuner]:
    def tuner(*args: Any, **kwargs: Any) -> Tuner:
        tried: list[Plan] = []  # of every step of the search
        conclusion = yield from _remembering(tune(*args, **kwargs), tried)
        plans = {plan.fingerprint: plan for plan in [conclusion.plan, *tried]}
        log_seconds = yield from _in_turns(list(plans.values()), job)
        relative = dict(zip(plans, np.exp(log_seconds - log_seconds[0]).tolist(), strict=True))
        found.update(_searched([plan.fingerprint for plan in tried], relative))
        found["notes"] = list(conclusion.notes)
        return conclusion

    return tuner


def _searched(tried: Sequence[str], relative: Mapping[str, float]) -> dict[str, Any]:
    """Returns a summary of a search.

    {"steps": those of the search, "to_final": of each of them its plan's step to that of the plan
    that it came to, all measured in turns, "settings": how many were tried}.
    """
    return {
        "steps": len(tried),
        "settings": len(set(tried)),
        "to_final": [relative[fingerprint] for fingerprint in tried],
    }


def _remembering(tuning: Tuner, tried: list[Plan]) -> Tuner:
    observation: TrialResult | None = None
    while True:
        try:
            experiment = tuning.send(observation)
        except StopIteration as finished:
            return finished.value
        if experiment.phase is Phase.SEARCH:
            tried.append(experiment.plan)
        observation = yield experiment


def _in_turns(plans: Sequence[Plan], job: Job) -> Any:
    """Yields steps under the plans in turns; returns the logarithms of their seconds."""
    for plan in plans:
        yield Trial(Phase.RACE, plan, traced=False, is_first=True)
    random = np.random.default_rng(job.seed)
    order: list[int] = []
    seconds = []
    for _ in range(job.rounds):
        for index in random.permutation(len(plans)).tolist():
            seen = yield Trial(Phase.RACE, plans[index], traced=False)
            order.append(index)
            seconds.append(seen.seconds)
    return estimate_paired_timings(order, seconds, len(plans)).log_seconds
