"""Measures the cost of records in a training step, and how a large plan's page loads and scrolls.

python -m benchmarks.tensorboard_tab
"""

import itertools
import logging
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from absl import app, flags

from benchmarks.machine import machine
from tf_libra import strategies
from tf_libra.autotune import TuningResult
from tf_libra.cost_model import ContentionModel
from tf_libra.reporting.records.event_writer import RecordWriter
from tf_libra.reporting.records.plan import PlanRecord
from tf_libra.reporting.records.recorder import Recorder
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan, TensorGroup
from tf_libra.specs.telemetry import AllReduceRecord
from tools import tensorboard_tab

_DRAWN = """
const done = arguments[arguments.length - 1];
const began = performance.now();
const seen = new MutationObserver(() => {
  if (document.querySelectorAll('#groups tbody tr').length !== arguments[0]) return;
  seen.disconnect();
  requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - began)));
});
document.querySelector('#view').remove();
seen.observe(document.querySelector('main'), {childList: true, subtree: true});
document.querySelector('#tab-plan').click();
"""

# Milliseconds between the frames of a scroll from end to end and back, step by step.
_SCROLLED = """
const [list, frames, done] = arguments;
const gaps = [];
let last;
const next = (now) => {
  if (last !== undefined) gaps.push(now - last);
  last = now;
  if (gaps.length === frames) return done(gaps);
  const way = Math.abs(1 - 2 * gaps.length / frames);
  list.scrollTop = (1 - way) * (list.scrollHeight - list.clientHeight);
  requestAnimationFrame(next);
};
requestAnimationFrame(next);
"""
_FRAMES = 240


def large_plan(num_tensors: int, num_groups: int) -> PlanRecord:
    """Returns a plan of groups of equal length."""
    random = np.random.default_rng(0)
    sizes = (4 * np.exp(random.uniform(3, 13, num_tensors))).astype(int)
    seconds = random.uniform(1e-5, 3e-4, num_tensors)
    profile = BackwardProfile.from_arrays(sizes, seconds, None, ["float32"] * num_tensors)
    cost = ContentionModel(8, 1e-5, (0.95, 0.05), (3e9, 2e9, 0.5), (4e9, 2e9, 0.5))
    edges = np.linspace(0, num_tensors, num_groups + 1).astype(int)
    groups = tuple(
        TensorGroup(int(a), int(b), (1, 2, 4)[i % 3])
        for i, (a, b) in enumerate(itertools.pairwise(edges))
    )
    plan = Plan.for_profile(profile, groups, 8, "libra")
    return PlanRecord(
        "step", 1, "made", strategies.Libra(), (1, 2, 4), TuningResult(plan, profile, cost)
    )


def spent(call: Callable[[], None]) -> float:
    """Seconds that a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def writing(record: PlanRecord, folder: Path, num_steps: int) -> None:
    """Prints the time of records of a plan, a step and a traced step on rank 0."""
    recorder = Recorder(folder, 0, "step", logging.getLogger("benchmark"))
    first = spent(lambda: recorder.record_plan(record))
    steady = [
        spent(partial(recorder.record_step_seconds, step, 0.03, is_steady=True))
        for step in range(num_steps)
    ]
    names = record.plan.tensor_names
    spans = tuple(
        AllReduceRecord(1, i, "", i, g.num_threads, 1, 1, 1, 1, 1, names[g.start : g.stop])
        for i, g in enumerate(record.plan.groups)
    )
    written = [spent(lambda: recorder.record_step(5, (0, 1), spans)) for _ in range(20)]
    recorder.close()
    size = sum(file.stat().st_size for file in folder.rglob("events*"))
    print(f"activation of a plan: {first * 1e3:.2f} ms")
    print(
        f"untraced step: {statistics.median(steady) * 1e6:.1f} µs in the median, "
        f"{max(steady) * 1e6:.0f} µs at most, of {len(steady)} steps"
    )
    print(f"traced step: {statistics.median(written) * 1e3:.2f} ms")
    print(f"event file: {size / 1e3:.0f} kB")


def drawing(record: PlanRecord, folder: Path) -> None:
    """Prints how long it takes from a click until the plan is painted, and how it scrolls."""
    writer = RecordWriter(folder, 0)
    writer.record(1, record)
    writer.close()
    with tensorboard_tab.serving(folder) as address, tensorboard_tab.browsing() as tab:
        tab.open(address)
        drawn = []
        for _ in range(_ROUNDS.value):
            tab.view("timeline")
            milliseconds = tab.driver.execute_async_script(_DRAWN, len(record.plan.groups))
            drawn.append(milliseconds)
        print(
            f"{len(record.plan.tensor_names)} tensors in {len(record.plan.groups)} groups drawn in "
            f"{statistics.median(drawn):.0f} ms in the median of {len(drawn)}, "
            f"{max(drawn):.0f} ms at most, the backend's answer included"
        )
        tab.find("#groups tbody tr")[0].click()
        for what, selector in (("groups", ".scroll:has(#groups)"), ("page", "html")):
            gaps = tab.driver.execute_async_script(_SCROLLED, tab.one(selector), _FRAMES)
            print(
                f"scrolling the {what}: a frame every {statistics.median(gaps):.0f} ms in the"
                f" median of {len(gaps)}, {statistics.quantiles(gaps, n=20)[-1]:.0f} ms at the 95th"
                f" percentile, {max(gaps):.0f} ms at most"
            )


def main(_: list[str]) -> None:
    """Measures both."""
    print(machine())
    record = large_plan(_TENSORS.value, _GROUPS.value)
    with tempfile.TemporaryDirectory() as folder:
        writing(record, Path(folder) / "writing", _STEPS.value)
        drawing(record, Path(folder) / "drawing")


if __name__ == "__main__":
    _TENSORS = flags.DEFINE_integer("tensors", 1000, "Tensors of the plan.", lower_bound=1)
    _GROUPS = flags.DEFINE_integer("groups", 100, "Groups of the plan.", lower_bound=1)
    _STEPS = flags.DEFINE_integer("steps", 2000, "Steps to write.", lower_bound=1)
    _ROUNDS = flags.DEFINE_integer("rounds", 5, "Times that the plan is drawn.", lower_bound=1)
    app.run(main)
