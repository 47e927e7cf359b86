"""One worker of `benchmarks.step_time`: takes its core, then measures.

    horovodrun -np 2 python -m benchmarks.jobs.worker JOB

JOB is a `Job` as JSON. Rank 0 writes what was measured to `job.output`.
"""

import json
import os
import sys

from benchmarks.jobs.job import Job


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ["HOROVOD_LOCAL_RANK"])]})
    # Only now: threads inherit the core, and libraries start some when they are imported.
    from benchmarks.jobs import interleaved

    interleaved.run(job)


if __name__ == "__main__":
    main()
