"""Fixtures: log directories, a job, and a browser."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.reporting.tensorboard import examples
from tests.reporting.tensorboard.plugin_backend import RECORD, RUN, Backend
from tests.worker_processes import Job
from tf_libra import strategies
from tf_libra.reporting.records.event_writer import RecordWriter
from tf_libra.reporting.records.record_types import plugin_content
from tf_libra.specs.plan import Plan
from tools import tensorboard_tab
from tools.tensorboard_tab import Tab, answer

HOSTILE_RUN = "<script>alert(1)<& 🐢 'quoted' two\nlines"


@dataclass(frozen=True)
class Trained:
    """Results of two jobs of two workers, the second under a user-provided plan.

    Attributes:
        logdir: the log directory of both.
        made: what the first says of its plan.
        given: what the second does.
    """

    logdir: Path
    made: dict[str, Any]
    given: dict[str, Any]


@pytest.fixture(scope="session")
def trained(run_job: Callable[..., Job], tmp_path_factory: pytest.TempPathFactory) -> Trained:
    logdir = tmp_path_factory.mktemp("runs")
    made, given = (
        run_job("tab.py", 2, str(logdir / "first"), env={"TF_LIBRA_JOB_CASES": case}).value(case)
        for case in ("made", "given")
    )
    return Trained(logdir, made, given)


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that no user would like to see: a large plan, hostile names, summaries gone wrong."""
    logdir = tmp_path_factory.mktemp("hostile")
    large = examples.plan_record(
        function="large", strategy=strategies.Wfbp(), num_tensors=1000, num_groups=100
    )
    write(logdir / "large", large)
    for name in examples.HOSTILE:
        write(logdir / HOSTILE_RUN, examples.plan_record(function=name, names=examples.HOSTILE))
    write_raw(logdir / "broken", "future", b"{}", plugin_content("plan").replace(b": 1", b": 2"))
    record = examples.plan_record(function="newer")
    text = record.to_json().replace('"version": 1', '"version": 7', 1)
    write_raw(logdir / "broken", "newer document", text.encode(), plugin_content("plan"))
    write_raw(logdir / "broken", "cut", record.to_json()[:100].encode(), plugin_content("plan"))
    write_raw(logdir / "broken", "no text", b"\xff\xfe\x00", plugin_content("plan"))
    write_raw(logdir / "broken", "no json", b"{}", b"\x00")
    return logdir


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Backend:
    """The plugin on the log directory of a run with `RECORD`."""
    logdir = tmp_path_factory.mktemp("logdir")
    write(logdir / "first", RECORD)
    return Backend(logdir)


@pytest.fixture
def plan() -> dict[str, str]:
    """Parameters of a request for `RECORD`."""
    return {"run": RUN, "tag": RECORD.tag}


@pytest.fixture(scope="session")
def address(trained: Trained) -> Iterator[str]:
    """A TensorBoard of both jobs."""
    with tensorboard_tab.serving(trained.logdir) as found:
        yield found


@pytest.fixture(scope="session")
def made(trained: Trained, address: str) -> dict[str, Any]:
    """Returns the plan that the job has tuned, its listing, and its explanation."""
    explained = trained.made
    plan = Plan.from_json(explained["plan"])
    assert explained["fitted"], explained["explain"]
    [heading] = [
        listed
        for listed in answer(address, "runs")["plans"]
        if listed["fingerprint"] == plan.fingerprint
    ]
    return {"plan": plan, "explained": explained["explain"], "heading": heading}


@pytest.fixture
def tab(browser: Tab, address: str, made: dict[str, Any]) -> Iterator[Tab]:
    """Opens the tab at the tuned plan; the browser may log no errors."""
    browser.open(address)
    browser.choose("#version", "tuned")
    yield browser
    assert browser.trouble() == []


def write(logdir: Path, record: examples.PlanRecord) -> None:
    """Writes a plan with what was measured under it."""
    writer = RecordWriter(logdir, 0)
    writer.record(record.step, record)
    for traced_step in examples.traced_steps(record):
        writer.record(traced_step.step, traced_step)
    for step in range(1, record.step + 20):
        writer.history(step, record.function, {"step_seconds": 0.05 + 1e-4 * step})
    seconds = {"backward_seconds": 0.04, "residual_communication_seconds": 0.004}
    writer.history(record.step + 3, record.function, seconds)
    drifted = {"drifted_step_seconds": 0.2, "expected_step_seconds": 0.05}
    writer.history(record.step + 5, record.function, drifted)
    returned = {"returned_step_seconds": 0.051, "expected_step_seconds": 0.05}
    writer.history(record.step + 9, record.function, returned)
    writer.close()


def write_raw(logdir: Path, tag: str, value: bytes, content: bytes) -> None:
    """Writes any summary in the name of the plugin."""
    import tensorflow as tf

    metadata = tf.compat.v1.SummaryMetadata(data_class=2)
    metadata.plugin_data.plugin_name = "libra"
    metadata.plugin_data.content = content
    writer = tf.summary.create_file_writer(str(logdir))
    with writer.as_default(step=1):
        tf.summary.write(tag, value, metadata=metadata)
    writer.close()
