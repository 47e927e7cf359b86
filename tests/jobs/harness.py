"""Common start of every job script: a thread per rank, a core if there are enough, and a folder for
results.

A script registers cases, functions that train a fresh model with a fresh optimized step, and runs
them all: starting TensorFlow in several processes takes longer than any of them.
"""

import itertools
import json
import logging
import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Set by tests/worker_processes.py for jobs without Horovod; lists workers only.
_TASK = json.loads(os.environ.get("TF_CONFIG", "{}"))
# TF_CONFIG alone would be that of a strategy.
_IS_LAUNCHED = any(name in os.environ for name in ("RANK", "SLURM_PROCID", "TF_LIBRA_JOB_LAUNCHED"))
if _IS_LAUNCHED:
    from tf_libra.coordination.launcher_environment import detect

    _environment = detect()
    assert _environment is not None
    RANK, SIZE = _environment.rank, _environment.world_size
elif _TASK:
    RANK = int(_TASK["task"]["index"])
    SIZE = len(_TASK["cluster"]["worker"])
else:
    RANK = int(os.environ.get("HOROVOD_RANK", "0"))
    SIZE = int(os.environ.get("HOROVOD_SIZE", "1"))
FOLDER = Path(os.environ["TF_LIBRA_JOB_FOLDER"])

_cores = sorted(os.sched_getaffinity(0))
if len(_cores) >= SIZE:  # else one core would have more to do than another
    os.sched_setaffinity(0, {_cores[RANK]})

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(2)

if not _TASK and not _IS_LAUNCHED:
    import horovod.tensorflow as hvd

from tensorflow.python.eager import context as tf_context  # noqa: E402

from tf_libra.coordination import control_plane, current_job  # noqa: E402

_BARRIERS = itertools.count()


class _Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append((record.levelname, record.getMessage()))


class Cases:
    """Cases of one job, run one after the other on all ranks."""

    def __init__(self) -> None:
        self._cases: dict[str, Callable[[], Any]] = {}
        self._ending: set[str] = set()
        self._results: dict[str, Any] = {}
        self._current = ""

    def add(self, name: str, function: Callable[[], Any], ends_ranks: bool = False) -> None:
        """Adds a case; it returns what JSON can say. After one that `ends_ranks`, none runs."""
        assert name not in self._cases, name
        self._cases[name] = function
        if ends_ranks:
            self._ending.add(name)

    def __call__(self, function: Callable[[], Any]) -> Callable[[], Any]:
        """Adds a case by decoration, under the function's name."""
        self.add(function.__name__, function)
        return function

    def save(self, **arrays: Any) -> None:
        """Saves arrays for the current case."""
        np.savez(
            FOLDER / f"{self._current}.{RANK}.npz",
            **{name: np.asarray(value) for name, value in arrays.items()},
        )

    def run(self) -> None:
        """Runs all cases; writes after each, so that a job that hangs tells where.

        TF_LIBRA_JOB_CASES, names with spaces between, limits them.
        """
        chosen = os.environ.get("TF_LIBRA_JOB_CASES", "").split() or list(self._cases)
        for name in chosen:
            function = self._cases[name]
            self._current = name
            print(f"{time.strftime('%X')} case {name}", flush=True)
            # The training function closes over its model; nothing of one case reaches the next.
            tf.keras.backend.clear_session()
            tf.keras.utils.set_random_seed(1)
            log = logging.getLogger("tf_libra")
            collector = _Collector()
            log.addHandler(collector)
            value, error = None, None
            began, computed = time.monotonic(), time.process_time()
            try:
                value = function()
            except Exception as raised:
                error = {
                    "type": type(raised).__name__,
                    "message": str(raised),
                    "traceback": traceback.format_exc(),
                }
            finally:
                log.removeHandler(collector)
            seconds, computed = time.monotonic() - began, time.process_time() - computed
            print(f"{name}: {seconds:.1f} s, {computed:.1f} s of CPU", flush=True)
            self._results[name] = {"value": value, "error": error, "log": collector.records}
            write_json("results", self._results)
            if name in self._ending:  # others are gone, and cannot be met
                return
            restart_engine()


def restart_engine() -> None:
    """Ends this rank's engine, once every rank is done with it."""
    if _TASK or _IS_LAUNCHED or hvd.is_initialized():
        barrier()
    for running in control_plane.running():
        running.close()


def restart_horovod() -> None:
    """Ends Horovod's job, and begins another of the same ranks.

    Each rank deletes its address when its job ends. A rank that begins the next one earlier than
    another has ended this one would find the address of the old job.
    """
    hvd.shutdown()
    number = sum(1 for _ in FOLDER.glob(f"ended.*.{RANK}"))
    (FOLDER / f"ended.{number}.{RANK}").touch()
    deadline = time.monotonic() + 60.0
    while sum(1 for _ in FOLDER.glob(f"ended.{number}.*")) < SIZE:
        assert time.monotonic() < deadline, "another rank has not ended Horovod's job"
        time.sleep(0.01)
    hvd.init()


def barrier() -> None:
    """Returns when every rank has called it."""
    if _IS_LAUNCHED:
        current_job.get_job().exchange_json({}, 600.0)
        return
    if _TASK:
        tf_context.context().wait_at_barrier(f"test {next(_BARRIERS)}", 60_000)
        return
    hvd.allreduce(tf.zeros([1]), name="test.barrier")


def own(batch: Any) -> Any:
    """This rank's samples of a batch of all ranks."""
    share = batch.shape[0] // SIZE
    return batch[RANK * share : (RANK + 1) * share]


def resident_bytes() -> int:
    """Returns this process's resident bytes without files: the machine may drop pages of files."""
    resident, shared = Path("/proc/self/statm").read_text().split()[1:3]
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def write_json(stem: str, document: Any) -> None:
    """Writes `STEM.RANK.json`; a reader never sees half of it."""
    path = FOLDER / f"{stem}.{RANK}.json"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(document))
    temporary.replace(path)
