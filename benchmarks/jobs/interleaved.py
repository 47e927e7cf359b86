"""Steps of several strategies in one process, interleaved round by round.

All strategies but pipelines, bursts and sharded updates train one model with one optimizer. So each
finds weights and caches as the one before left them, as in real training, and none is charged for
the memory of the others. That weights may differ between ranks after a step without communication
does not change what a step costs. A pipeline, a burst or a step with sharded updates trains its own
model, which starts with the same weights: the next step of a shared model would first synchronize
the variables that the step before has trained.

What a library does between steps goes on for all: Horovod's background thread, which every job
that `hvd.init()` starts has, wakes once per cycle during the steps of `none`, too.
"""

import os
import re
from pathlib import Path
from typing import Any

import tf_libra
from benchmarks.jobs import rounds
from benchmarks.jobs.job import Job
from benchmarks.jobs.training import Exchange, Training, begin, trained
from benchmarks.variants import (
    has_stages,
    is_ours,
    options_of,
    sends_zeros,
    strategy_of,
    trains_own_model,
)
from tf_libra import strategies
from tf_libra.backends import engine

# Of HOROVOD_*, what tells a worker its place in the job is no setting.
_RANK_VARIABLES = re.compile(r"HOROVOD_((LOCAL_|CROSS_)?(RANK|SIZE)|HOSTNAME|GLOO_RENDEZVOUS_.*)")


# Both ways that Horovod offers, of which the better counts.
def _horovod_exchanges() -> dict[str, Exchange]:
    import horovod.tensorflow as hvd

    return {
        "horovod:per_gradient": lambda gradients: [
            hvd.allreduce(gradient) for gradient in gradients
        ],
        "horovod:grouped": hvd.grouped_allreduce,
    }


def run(job: Job) -> None:
    """Measures all strategies of `job`; rank 0 writes the outcome to `job.output`.

    See `rounds.outcome`; "horovod" appears in "seconds" as its two variants, "horovod:per_gradient"
    and "horovod:grouped".
    """
    training = begin(job)
    steps, tuning = steps_of(job, training)
    ranks = training.ranks
    mine = rounds.seconds_in_turns(list(steps.values()), training.batch, job, ranks.barrier)
    for name in filter(trains_own_model, job.strategies):
        steps[name].synchronize_variables()  # else it would warn about variables that are unused
    seconds = ranks.gather(mine).max(axis=0)
    if ranks.rank == 0:
        details = (training.num_parameters, _horovod_settings() if ranks.uses_horovod else {})
        Path(job.output).write_text(rounds.outcome(job, steps, seconds, tuning, *details))


def steps_of(job: Job, training: Training) -> tuple[dict[str, Any], dict[str, dict[str, float]]]:
    """Returns the step of every strategy, tf_libra's with active plans, and what tuning took."""
    steps: dict[str, Any] = {}
    tuning: dict[str, dict[str, float]] = {}
    names = job.strategies
    # The first starts an engine with as many lanes as it may use, which the others share.
    flat = [name for name in names if is_ours(name) and not has_stages(name)]
    ours = {name: strategy_of(name) for name in flat}
    for name in sorted(ours, key=lambda strategy: ours[strategy].num_lanes, reverse=True):
        # Where ranks have different data, the strategy before has left them with different
        # moving averages.
        options: dict[str, Any] = {"broadcast_variables": "always", "shard_updates": False}
        options |= options_of(name)
        optimized = tf_libra.optimize(ours[name], **options)
        own = trained(job, training.ranks) if trains_own_model(name) else training
        step = optimized(own.step(list))
        steps[name] = _SendingZeros(step) if sends_zeros(name) else step
        tuning[name] = rounds.until_planned(steps[name], training.batch)
        tuning[name]["optimizer_bytes"] = own.optimizer_bytes()
    for name in filter(has_stages, names):
        staged = tf_libra.optimize(strategy_of(name))
        steps[name] = staged(trained(job, training.ranks).step(list))
        tuning[name] = rounds.until_planned(steps[name], training.batch, has_families=True)
    if "none" in names:
        steps["none"] = training.step(list)
    if "one-worker" in names:
        alone = training.step(list)
        ranks = training.ranks
        steps["one-worker"] = rounds.on_joint_batch(alone, training.batch, ranks.rank, ranks.size)
    if "horovod" in names:
        steps |= {name: training.step(exchange) for name, exchange in _horovod_exchanges().items()}
    return steps, tuning


class _SendingZeros:
    """A step under which this rank sends blocks of zeros, too, also while it is tuned."""

    def __init__(self, step: Any) -> None:
        self._step = step

    def __call__(self, *batch: Any) -> Any:
        _omit_zeros(False)
        try:
            return self._step(*batch)
        finally:
            _omit_zeros(True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)


def _omit_zeros(omits: bool) -> None:
    running = engine.running()
    if running is not None:  # the first step starts it
        running.omit_zeros(omits)


def _horovod_settings() -> dict[str, Any]:
    """Returns the active settings: from the environment, else the defaults of this version."""
    defaults = strategies.HorovodFusion()
    environment = {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith("HOROVOD_") and not _RANK_VARIABLES.fullmatch(name)
    }
    cycle_ms = float(environment.get("HOROVOD_CYCLE_TIME", defaults.cycle_seconds * 1e3))
    threshold = int(environment.get("HOROVOD_FUSION_THRESHOLD", defaults.buffer_bytes))
    return {
        "cycle_seconds": cycle_ms / 1e3,
        "fusion_threshold_bytes": threshold,
        "environment": environment,
    }
