"""A step in stages and data-parallel ones, in turns, of two models that begin alike."""

import json
from pathlib import Path

from benchmarks.jobs import interleaved, rounds
from benchmarks.jobs.job import Job
from benchmarks.jobs.training import begin
from benchmarks.variants import has_stages


def run(job: Job) -> None:
    """Measures; rank 0 writes {"seconds", "plan", "explained"} to `job.output`."""
    together = begin(job)
    steps, _ = interleaved.steps_of(job, together)
    (with_stages,) = filter(has_stages, job.strategies)
    staged = steps["spp"] = steps.pop(with_stages)
    ranks = together.ranks
    mine = rounds.seconds_in_turns(list(steps.values()), together.batch, job, ranks.barrier)
    staged.synchronize_variables()  # else it would warn about variables that are unused here
    slowest = ranks.gather(mine).max(axis=0)
    if ranks.rank != 0:
        return
    assert staged.plan is not None
    document = {
        "seconds": {name: slowest[:, i].tolist() for i, name in enumerate(steps)},
        "plan": json.loads(staged.plan.to_json()),
        "explained": staged.explain(),
    }
    Path(job.output).write_text(json.dumps(document))
