"""One worker of a benchmark: takes its cores, if it is to have some, then measures.

    horovodrun -np 2 python -m benchmarks.jobs.worker interleaved JOB
    horovodrun -np 2 python -m benchmarks.jobs.worker unseen JOB
    horovodrun -np 2 python -m benchmarks.jobs.worker second_job JOB
    horovodrun -np 2 python -m benchmarks.jobs.worker wire JOB
    horovodrun -np 2 python -m benchmarks.jobs.worker bursts JOB
    horovodrun -np 2 python -m benchmarks.jobs.worker pipelines JOB
    horovodrun -np 2 python -m benchmarks.jobs.worker stage_overhead JOB
    TF_CONFIG=... python -m benchmarks.jobs.worker mwms JOB

JOB is the module's `Job` as JSON. Rank 0 writes what was measured to `job.output`.
"""

import importlib
import json
import os
import sys


def main() -> None:
    name, job = sys.argv[1], json.loads(sys.argv[2])
    if job["pinned"]:
        os.sched_setaffinity(0, _cores(_local_rank(), job["cores"]))
    # Only now: threads inherit the cores, and libraries start some when they are imported.
    module = importlib.import_module(f"benchmarks.jobs.{name}")
    module.run(module.Job(**job))


def _cores(local_rank: int, count: int) -> set[int]:
    """Returns the cores of a worker, none of which another worker of this host has."""
    usable = sorted(os.sched_getaffinity(0))
    return {usable[(local_rank * count + i) % len(usable)] for i in range(count)}


def _local_rank() -> int:
    """Among the workers of this host; where there is one for each, they have cores of their own."""
    config = os.environ.get("TF_CONFIG")
    if config is not None:
        return int(json.loads(config)["task"]["index"])
    by_mpich = "MPI_LOCALRANKID" in os.environ
    return int(os.environ["MPI_LOCALRANKID" if by_mpich else "HOROVOD_LOCAL_RANK"])


if __name__ == "__main__":
    main()
