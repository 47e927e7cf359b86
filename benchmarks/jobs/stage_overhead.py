"""Steps of one worker, of a burst plan on one rank alone, and of two stages, in turns.

Each trains a model of its own, which all begin alike.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tf_libra
from benchmarks.jobs import rounds
from benchmarks.jobs.job import StageOverheadJob as Job
from benchmarks.jobs.ranks import Ranks
from benchmarks.jobs.training import begin, trained
from tf_libra.model_parallel.execution.stage_executor import StageExecutor
from tf_libra.model_parallel.planning.burst import with_device_counts
from tf_libra.specs.burst import BurstPlan
from tf_libra.specs.scaling_profile import ScalingProfile
from tf_libra.strategies import DeepPool, Spp

NUM_STAGES = 2


def run(job: Job) -> None:
    """Measures; rank 0 writes {"seconds", "computed", "plan"} to `job.output`.

    "computed" has, by stage and round, the seconds of a forward and a backward computation (means
    over microbatches), of deferred gradients and of the update.
    """
    together = begin(job)
    ranks = together.ranks
    alone = rounds.on_joint_batch(_step(job, ranks), together.batch, ranks.rank, 2)
    stages = Spp(num_stages=NUM_STAGES, num_microbatches=job.microbatches)
    staged = tf_libra.optimize(stages)(_step(job, ranks))
    rounds.until_planned(staged, together.batch, has_families=True)
    plan = staged.plan
    bursts = tf_libra.optimize(DeepPool(), plan=_on_one_rank(plan.layer_names))
    burst = bursts(_step(job, ranks))
    rounds.until_planned(burst, together.batch, has_families=True)
    steps = {"one-worker": alone, "burst": burst, "stages": staged}
    spans = _Spans()
    StageExecutor.step = spans.recorded(StageExecutor.step)  # type: ignore[method-assign]
    mine = rounds.seconds_in_turns(list(steps.values()), together.batch, job, ranks.barrier)
    for step in (burst, staged):
        step.synchronize_variables()  # else it would warn about variables that are unused here
    slowest = ranks.gather(mine).max(axis=0)
    computed = ranks.gather(np.array(spans.rows[-job.rounds :]))
    if ranks.rank == 0:
        document = {
            "seconds": {name: slowest[:, i].tolist() for i, name in enumerate(steps)},
            "computed": [computed[stage.devices[0]].tolist() for stage in plan.stages],
            "plan": json.loads(plan.to_json()),
        }
        Path(job.output).write_text(json.dumps(document))


def _step(job: Job, ranks: Ranks) -> Any:
    """Returns a step of a new model, whose layers have the same names as those of the others."""
    tf.keras.backend.clear_session()
    return trained(job, ranks).step(list)


def _on_one_rank(names: tuple[str, ...]) -> BurstPlan:
    """Returns the burst plan of two ranks that has all layers on the first."""
    ones, moves = np.ones([len(names), 2]), np.zeros([len(names) - 1, 2, 2])
    scaling = ScalingProfile.chain([1, 2], ones, 0 * ones, moves, names)
    return with_device_counts(scaling, [1] * len(names))


class _Spans:
    """Seconds of the computations of each step in stages, in the order of steps."""

    def __init__(self) -> None:
        self.rows: list[list[float]] = []

    def recorded(self, step: Any) -> Any:
        """Returns the method `step` that records its computations."""

        def run_step(executor: StageExecutor, arguments: Any) -> list[Any]:
            results: list[Any] = step(executor, arguments)
            if executor.layout.num_stages == NUM_STAGES:
                self.rows.append(computed_seconds(executor))
            return results

        return run_step


def computed_seconds(executor: StageExecutor) -> list[float]:
    """Returns the seconds of each kind of computation in the last step; see `run`."""
    found: dict[str, list[float]] = {"forward": [], "backward": [], "gradients": [], "update": []}
    for span in executor.task_spans:
        found[span.kind].append(span.stop_seconds - span.start_seconds)
    start, stop = executor.update_span
    found["update"].append(stop - start)
    return [float(np.mean(seconds)) if seconds else 0.0 for seconds in found.values()]
