"""Measures plans while their network, or a core, changes: a link that drops, and a hog.

    python -m benchmarks.drift --rate 5gbit --slow_rate 500mbit --steps 800 --json drift.json

Two workers, each in a network namespace (`benchmarks.cluster`) and on a core of its own, train
under `strategy="libra"` with everything at its default. After `--steps` steps each, both links
drop to `--slow_rate` and come back; then a program that only counts shares rank 0's core, and ends.

What a number means: a stage's step is the median of the first or last tenth of those of its steps
that tried nothing out, of rank 0; the cost of the others is what they took beyond the last, as a
share of the stage's time. Plans are named as the log names them, in the order in which they were
active.

The JSON: {"stages": [{"name", "steps", "first_step_seconds", "last_step_seconds", "tried_steps",
"tried_share", "plans": [{"step", "plan", "groups", "threads"}]}], "log": [lines], "settings",
"machine", "versions"}.
"""

import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags

from benchmarks import cluster as cluster_lib
from benchmarks import models
from benchmarks.jobs.job import Task
from benchmarks.machine import congestion_control, machine, versions

FLAGS = flags.FLAGS if __name__ == "__main__" else flags.FlagValues()
flags.DEFINE_string("rate", "5gbit", "Of each link, as tc writes it.", flag_values=FLAGS)
flags.DEFINE_string("slow_rate", "500mbit", "Of each link that has dropped.", flag_values=FLAGS)
flags.DEFINE_integer("steps", 800, "Of each stage.", lower_bound=20, flag_values=FLAGS)
flags.DEFINE_string("model", "cnn5m", "See benchmarks.models.", flag_values=FLAGS)
flags.DEFINE_string("json", None, "File to write the outcome to.", flag_values=FLAGS)
flags.DEFINE_string("worker", None, "Of a worker: its folder.", flag_values=FLAGS)

_STAGES = ("as tuned", "links slow", "links back", "core shared", "core back")
_HOG = "while True: pass"
# A stage of many slow steps; past that something is wrong.
_STAGE_SECONDS = 3600.0
_POLL_SECONDS = 0.05


def main(argv: Sequence[str]) -> int:
    if len(argv) > 1:
        raise app.UsageError(f"flags only, got {argv[1]!r}")
    if FLAGS.worker is not None:
        try:
            _work(Path(FLAGS.worker))
        except ValueError as error:
            print(f"drift: {error}", file=sys.stderr)
            return 1
        return 0
    here = machine()
    try:
        models.find(FLAGS.model)
        with tempfile.TemporaryDirectory() as folder:
            _drive(Path(folder))
            outcome = json.loads((Path(folder) / "measured.json").read_text())
    except (ValueError, cluster_lib.ClusterError, TimeoutError) as error:
        print(f"drift: {error}", file=sys.stderr)
        return 1
    document = outcome | {"machine": here, "versions": versions()}
    if FLAGS.json is not None:
        Path(FLAGS.json).write_text(json.dumps(document, indent=1) + "\n")
    print(table(document))
    return 0


def _drive(folder: Path) -> None:
    """Starts the workers, and changes what is around them when rank 0 asks for the next stage."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    command = [sys.executable, "-m", "benchmarks.drift", f"--worker={folder}"]
    command += [f"--{name}={FLAGS[name].value}" for name in ("rate", "slow_rate", "steps", "model")]
    with (
        cluster_lib.Cluster(2, FLAGS.rate) as cluster,
        cluster_lib.rank_environments(cluster) as environments,
    ):
        workers = [
            cluster.popen(host, command, environment | variables, stdout=sys.stderr)
            for host, variables in zip(cluster.hosts, environments, strict=True)
        ]

        def alive() -> None:
            if any(worker.poll() is not None for worker in workers):
                raise ValueError("a worker has ended before the last stage")

        def set_rates(rate: str) -> None:
            for host in cluster.hosts:
                cluster.set_rate(host, rate)

        hogs: list[Any] = []
        changes: tuple[Callable[[], Any], ...] = (
            lambda: None,
            lambda: set_rates(FLAGS.slow_rate),
            lambda: set_rates(FLAGS.rate),
            lambda: hogs.append(
                cluster.popen(cluster.hosts[0], [sys.executable, "-c", _HOG], environment)
            ),
            lambda: hogs[0].kill(),
        )
        for number, change in enumerate(changes):
            _wait_for(folder / f"request.{number}", alive)
            change()
            (folder / f"given.{number}").touch()
        for worker in workers:
            if worker.wait() != 0:
                raise ValueError(f"a worker failed with status {worker.returncode}")


def _wait_for(path: Path, alive: Callable[[], None] = lambda: None) -> None:
    deadline = time.monotonic() + _STAGE_SECONDS
    while not path.exists():
        alive()
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path.name} did not come within {_STAGE_SECONDS:g} s")
        time.sleep(_POLL_SECONDS)


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage().splitlines()[0])


def _work(folder: Path) -> None:
    import horovod.tensorflow as hvd

    import tf_libra
    from benchmarks.jobs.training import begin

    job = Task(model=FLAGS.model, seed=0, pinned=True, inter_op_threads=2, output="")
    training = begin(job)
    handler = _Lines()
    logging.getLogger("tf_libra").addHandler(handler)
    step = tf_libra.optimize("libra")(training.step(list))
    while step.plan is None:
        step(*training.batch)
    stages = []
    for number, name in enumerate(_STAGES):
        if hvd.rank() == 0:
            (folder / f"request.{number}").touch()
            _wait_for(folder / f"given.{number}")
        stages.append(_stage(name, step, training.batch))
    if hvd.rank() == 0:
        lines = [
            line for line in handler.lines if line.startswith(("drift:", "run: plan", "note: ra"))
        ]
        settings = {
            "np": 2,
            "model": FLAGS.model,
            "rate": FLAGS.rate,
            "slow_rate": FLAGS.slow_rate,
            "congestion_control": congestion_control(),
        }
        document = {"stages": stages, "log": lines, "settings": settings}
        (folder / "measured.json").write_text(json.dumps(document, allow_nan=False))


def _stage(name: str, step: Any, batch: tuple[Any, Any]) -> dict[str, Any]:
    seconds, tried, plans = [], [], [_described(0, step.plan)]
    for number in range(FLAGS.steps):
        start = time.perf_counter()
        step(*batch).numpy()
        seconds.append(time.perf_counter() - start)
        tried.append(str(step.phase) != "run")
        if step.plan.short_id != plans[-1]["plan"]:
            plans.append(_described(number, step.plan))
    return {"name": name, **summary(seconds, tried), "plans": plans}


def summary(seconds: Sequence[float], tried: Sequence[bool]) -> dict[str, Any]:
    """Summarizes the duration of a stage's steps, some of which are trials.

    Raises:
        ValueError: all of them did.
    """
    measured, is_tried = np.array(seconds), np.array(tried, dtype=bool)
    untried = measured[~is_tried]
    if not len(untried):
        raise ValueError(
            f"all {len(measured)} steps of a stage tried things out: --steps is too few"
        )
    tenth = max(len(untried) // 10, 1)
    last = float(np.median(untried[-tenth:]))
    extra = np.maximum(measured[is_tried] - last, 0.0).sum()
    return {
        "steps": len(measured),
        "first_step_seconds": float(np.median(untried[:tenth])),
        "last_step_seconds": last,
        "tried_steps": int(is_tried.sum()),
        "tried_share": float(extra / measured.sum()),
    }


def _described(step: int, plan: Any) -> dict[str, Any]:
    return {
        "step": step,
        "plan": plan.short_id,
        "groups": len(plan.groups),
        "threads": [group.num_threads for group in plan.groups],
    }


def table(document: dict[str, Any]) -> str:
    """A row per stage, and what the log said."""
    settings = document["settings"]
    lines = [
        f"{settings['model']}, 2 workers, one host each (network namespaces), links of"
        f" {settings['rate']}, dropping to {settings['slow_rate']}, TCP congestion control"
        f" {settings['congestion_control']}",
        "",
        "| stage | step at first, ms | at last, ms | trying | their cost | plans (groups) |",
        "|---|---|---|---|---|---|",
    ]
    for stage in document["stages"]:
        plans = ", then ".join(f"{plan['plan'][:8]} ({plan['groups']})" for plan in stage["plans"])
        lines.append(
            f"| {stage['name']} | {stage['first_step_seconds'] * 1e3:.1f}"
            f" | {stage['last_step_seconds'] * 1e3:.1f} | {stage['tried_steps']}"
            f" | {stage['tried_share']:.1%} | {plans} |"
        )
    return "\n".join([*lines, "", *document["log"]])


if __name__ == "__main__":
    app.run(main)
