"""One worker of a benchmark: takes its core, if it is to have one, then measures.

    horovodrun -np 2 python -m benchmarks.jobs.worker interleaved JOB
    horovodrun -np 2 python -m benchmarks.jobs.worker unseen JOB
    horovodrun -np 2 python -m benchmarks.jobs.worker wire JOB

JOB is the module's `Job` as JSON. Rank 0 writes what was measured to `job.output`.
"""

import importlib
import json
import os
import sys


def main() -> None:
    name, job = sys.argv[1], json.loads(sys.argv[2])
    if job["pinned"]:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(os.environ["HOROVOD_LOCAL_RANK"])]})
    # Only now: threads inherit the core, and libraries start some when they are imported.
    module = importlib.import_module(f"benchmarks.jobs.{name}")
    module.run(module.Job(**job))


if __name__ == "__main__":
    main()
