"""A worker of a benchmark, forked by the tests' server instead of importing TensorFlow itself."""

import contextlib
import json
import os
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def hand_over_to_fork(fork_server: str) -> None:
    """Ends as a forked worker that runs the rest of this process's command; signals reach it."""
    sys.path.insert(0, str(ROOT))
    from tests.forkserver import Nursery

    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    server = Nursery(Path(fork_server), imports_horovod="HOROVOD_RANK" in environment)
    output, errors = (Path(f"/proc/{os.getpid()}/fd/{number}") for number in (1, 2))
    arguments = (json.dumps([*os.sched_getaffinity(0)]), *sys.orig_argv[3:])
    worker = server.fork(Path(__file__), arguments, environment, output, _namespace(), errors)

    def forward(number: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker.pid, number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, forward)
    code = worker.wait()
    os._exit(code if code >= 0 else 128 - code)


def _namespace() -> str | None:
    """Returns the name of this process's network, if it is a host of a cluster."""
    for path in Path("/run/netns").glob("*"):
        with contextlib.suppress(OSError):  # it may go meanwhile
            if path.samefile("/proc/self/ns/net"):
                return path.name
    return None


if __name__ == "__main__":
    os.sched_setaffinity(0, json.loads(sys.argv.pop(1)))
    from benchmarks.jobs import worker

    worker.main()
