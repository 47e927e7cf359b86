"""Pipelines on several workers, from an unchanged script."""

import importlib.util
import json
import re
import xml.etree.ElementTree
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from tests.model_parallel.job import batches, build_model, train_alone
from tests.model_parallel.models import EVERY
from tests.worker_processes import Job
from tf_libra.cli import main
from tf_libra.specs.cluster import Cluster
from tf_libra.specs.pipeline import PipelinePlan

STEPS, SAMPLES, MICROBATCHES = 5, 48, 4
OTHERS = {"chosen": "deep", "data_parallel": "deep", "gpipe": "deep"}
CASES = {
    2: {
        *("calling", "dropping", "generating", "normalized", "running_mean"),
        *("deep", "chosen", "gpipe", "data_parallel"),
    },
    3: {"convolutional"},
    4: {"convolutional", "deep"},
}
JOB = "pipelines.py"


@pytest.fixture(params=[2, 3, 4])
def trained(request: pytest.FixtureRequest, job_of: Callable[[int], Job]) -> Job:
    return job_of(request.param)


def test_pipeline_trains_like_one_process(trained: Job) -> None:
    """Compares results, and synchronized variables with optimizer slots, on every rank."""
    cases = [name for name, case in trained.cases(0).items() if "returned" in (case["value"] or {})]
    assert set(cases) == CASES[trained.world_size]
    for name in cases:
        make = EVERY[OTHERS.get(name, name)]
        wanted, every = train_alone(make, STEPS, SAMPLES, MICROBATCHES)
        for rank in range(trained.world_size):
            value = trained.value(name, rank)
            for got, want in zip(value["returned"], wanted, strict=True):
                np.testing.assert_allclose(got["loss"], want["loss"], rtol=1e-3, err_msg=name)
                assert np.shape(got["logits"]) == (SAMPLES, 10)
            last = value["returned"][-1]
            logits = wanted[-1]["logits"]
            np.testing.assert_allclose(last["logits"], logits, rtol=2e-3, atol=2e-4)
            assert last["updates"] == wanted[-1]["updates"] == STEPS
            found = trained.arrays(name, rank)
            assert len(found) == len(every)
            for variable, value in every.items():
                number, _, _ = variable.partition(" ")
                np.testing.assert_allclose(
                    found[number],
                    value,
                    rtol=1e-3,
                    atol=1e-4,
                    err_msg=f"{name}: {variable} on rank {rank}",
                )


def test_plan_gives_every_worker_one_stage(trained: Job) -> None:
    for name, case in trained.cases(0).items():
        if "returned" not in (case["value"] or {}):
            continue
        stages = case["value"]["stages"]
        assert sorted(rank for ranks in stages for rank in ranks) == list(range(trained.world_size))
        assert case["value"]["settled"]
        kinds = {"deep": trained.world_size, "data_parallel": 1}
        assert len(stages) == kinds.get(name, len(stages))


@pytest.mark.parametrize("trained", [4], indirect=True)
def test_released_variables_are_synchronized_when_needed(trained: Job) -> None:
    """Cases are another kind of arguments, an evaluation, and a request."""
    alone = build_model(EVERY["deep"])
    first, second, third = batches(3, SAMPLES)
    halves = [tuple(tensor[part] for tensor in third) for part in (slice(0, 24), slice(24, 48))]
    for step in (first, second):
        alone.accumulated(*step, MICROBATCHES)
    loss = float(alone.flagged(*second, training=False)["loss"])
    for step in halves:
        alone.accumulated(*step, MICROBATCHES)
    whole = [int(tf.size(variable)) for variable in alone.variables]
    held_indices = []
    for rank in range(trained.world_size):
        value = trained.value("released", rank)
        np.testing.assert_allclose(value["evaluated"], loss, rtol=1e-3)
        after_first, synchronized, *later = value["sizes"]
        assert synchronized == whole
        assert all(sizes == after_first for sizes in later)
        assert {0} < {*after_first}
        assert all(a in (0, b) for a, b in zip(after_first, whole, strict=True))
        held_indices.append({index for index, size in enumerate(after_first) if size})
        found = trained.arrays("released", rank)
        for number, variable in enumerate(alone.variables):
            np.testing.assert_allclose(found[str(number)], variable.numpy(), rtol=1e-3, atol=1e-4)
    stages = trained.value("released")["stages"]
    for ranks in stages:
        assert all(held_indices[rank] == held_indices[ranks[0]] for rank in ranks)
    assert held_indices[stages[0][0]] | held_indices[stages[1][0]] == set(range(len(whole)))


@pytest.mark.parametrize("trained", [2, 3], indirect=True)
def test_indivisible_batch_runs_in_fewer_microbatches_or_one_stage(trained: Job) -> None:
    """The next batch runs as before; three ranks release variables."""
    alone = build_model(EVERY["deep"])
    for size in (24, 24, 3, 24, 1):
        alone.accumulated(*batches(1, trained.world_size * size)[0], 1)
    for rank in range(trained.world_size):
        assert trained.value("short_batches", rank) is None
        found = trained.arrays("short_batches", rank)
        for number, variable in enumerate(alone.variables):
            np.testing.assert_allclose(found[str(number)], variable.numpy(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("trained", [2], indirect=True)
@pytest.mark.parametrize("case", ["in_turns", "in_turns_released", "gone"])
def test_steps_with_shared_variables_synchronize_them(trained: Job, case: str) -> None:
    """Steps train a generator and a discriminator; in one case a step has been collected."""
    for rank in range(trained.world_size):
        value = trained.value(case, rank)
        assert value["difference"] < 1e-5 < 1e-3 < value["moved"], value


@pytest.mark.parametrize("trained", [2], indirect=True)
def test_objects_with_a_decorated_method_train_independently(trained: Job) -> None:
    for rank in range(trained.world_size):
        value = trained.value("objects_in_turns", rank)
        assert value["differ"] < 1e-9 < 1e-3 < value["apart"], value


@pytest.mark.parametrize("trained", [2], indirect=True)
def test_collected_step_logs_nothing(trained: Job) -> None:
    """Its variables can still be read, or are gone as well."""
    for rank in range(trained.world_size):
        assert trained.value("ends", rank) is None
        for case in ("gone", "ends"):
            assert "garbage-collected" not in trained.log(case, rank)


@pytest.mark.parametrize("trained", [2], indirect=True)
def test_horovod_broadcast_of_variables_synchronizes_stages(trained: Job) -> None:
    for rank in range(trained.world_size):
        assert trained.value("broadcast_after_batches", rank)["differ"] < 1e-12


@pytest.mark.parametrize("trained", [2], indirect=True)
def test_elastic_states_commit_synchronized_variables(trained: Job) -> None:
    """Rank 0 logs once which variables a state omits."""
    for rank in range(trained.world_size):
        value = trained.value("committed", rank)
        assert max(value["kept"]) < 1e-12, value
        assert value["restored"] and all(value["restored"]), value
        lines = trained.log("committed", rank).splitlines()
        warnings = [line for line in lines if "elastic" in line]
        assert len(warnings) == (rank == 0), warnings
        facts = ("4 variables", "'momentum0")
        assert all(fact in line for line in warnings for fact in facts)


@pytest.mark.parametrize("trained", [2], indirect=True)
def test_variable_that_is_lost_with_ranks_raises(trained: Job) -> None:
    for rank in range(trained.world_size):
        error = trained.error("lost_with_ranks", rank)
        assert error.startswith("ValueError: variable ") and "elastic state" in error


@pytest.mark.parametrize("trained", [2], indirect=True)
def test_step_in_one_function_computes_the_bits_of_tasks_that_python_calls(trained: Job) -> None:
    for rank in range(2):
        value = trained.value("compared_with_python", rank)
        assert len(value["equal"]) > 2 and all(value["equal"])
        assert value["spans"] == value["other_spans"]
        times = [seconds for span in value["seconds"] for seconds in span]
        assert times == sorted(times)


@pytest.mark.parametrize("trained", [4], indirect=True)
def test_gradient_groups_on_lanes_train_like_one_process(trained: Job) -> None:
    """Both stages all-reduce three groups within their last backward computation."""
    for rank in range(trained.world_size):
        value = trained.value("grouped", rank)
        assert value["groups"] == [3, 3]
        assert value["differ"] and max(value["differ"]) < 1e-4, value


@pytest.mark.parametrize("trained", [2], indirect=True)
def test_next_job_starts_with_the_variables_of_its_rank_0(trained: Job) -> None:
    """No rank requests values from the stages of the previous job."""
    job = trained.arrays("another_job", 1)
    assert [trained.value("another_job", rank)["rank"] for rank in range(2)] == [1, 0]
    other = trained.arrays("another_job", 0)
    ours = [name for name in job if name.startswith("ours/")]
    assert ours
    for name in ours:
        np.testing.assert_array_equal(job[name], other[name])
        alone = job[name.replace("ours", "alone")]
        np.testing.assert_allclose(job[name], alone, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("trained", [4], indirect=True)
def test_next_job_connects_to_its_own_processes(trained: Job) -> None:
    """A process may have the same rank and world size again, with other peers."""
    for rank in range(trained.world_size):
        value = trained.value("other_partners", rank)
        neighbour = {rank, rank ^ 1}
        opposite = {rank, 3 - rank}
        in_turn = [neighbour, neighbour, opposite]
        assert value["lanes"] == [sum(pair) / 2 for pair in in_turn]
        assert value["horovod"] == [sum(neighbour) / 2, sum(opposite) / 2]
        assert value["sums"] == [sum(opposite), sum(neighbour)]


def test_steps_free_variables_of_other_stages(run_job: Callable[..., Job]) -> None:
    """Runs without oneDNN, which keeps freed memory in a pool, and glibc returns what is freed.

    By default, glibc keeps up to 64 MiB in its heap after a large buffer, such as a link probe's.
    """
    env = {"TF_ENABLE_ONEDNN_OPTS": "0", "MALLOC_MMAP_THRESHOLD_": str(1 << 17)}
    job = run_job("pipeline_memory.py", 2, env=env)
    for rank in range(2):
        value = job.value("memory", rank)
        others = value["others"]
        assert others >= 6.4e7  # bytes of two layers with momenta
        # Other memory of a step varies by less.
        assert value["before"] - value["released"] > 0.8 * others, value
        assert value["back"] - value["released"] > 0.8 * others, value


@pytest.mark.parametrize("trained", [2, 4], indirect=True)
def test_explain_draws_predicted_and_measured_charts_of_all_ranks(trained: Job) -> None:
    """The text also names the cause of each rank's longest bubble."""
    stages = trained.value("deep")["stages"]
    for rank in range(trained.world_size):
        text = trained.value("deep", rank)["explained"]
        assert f"a pipeline of {len(stages)} stages under spp, {MICROBATCHES} microbatches" in text
        assert all(f"on rank {ranks[0]}" in text for ranks in stages)
        assert "the bottleneck is " in text
        assert text.index("predicted, ") < text.index("measured, ")
        for number in range(trained.world_size):
            charts = [line for line in text.splitlines() if line.startswith(f"rank {number}    ")]
            assert len(charts) == 2
            assert re.search("[A-Da-d]", charts[0])
            assert text.count(f"rank {number} computes nothing for ") == 2
        assert re.search(r", for (forward|backward) of microbatch \d by stage \d", text)
        assert max(map(len, text.splitlines())) <= 100
    assert "an iteration takes " in trained.log("deep")


@pytest.mark.parametrize("trained", [2, 4], indirect=True)
def test_logdir_of_a_pipeline_is_readable_by_commands(
    trained: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files are measurements, a plan, a picture, and a trace with all microbatches."""
    logdir = trained.folder / "logdir"
    files = [f"--layers={logdir / 'layers.json'}", f"--cluster={logdir / 'cluster.json'}"]
    assert main(["pipeline", "simulate", *files, f"--plan={logdir / 'pipeline.json'}"]) == 0
    assert f"spp, {MICROBATCHES} microbatches" in capsys.readouterr().out
    assert main(["pipeline", "compare", *files, "--num_microbatches=4"]) == 0
    assert "data-parallel" in capsys.readouterr().out
    plan = PipelinePlan.from_json((logdir / "pipeline.json").read_text())
    assert [list(stage.devices) for stage in plan.stages] == trained.value("deep")["stages"]
    cluster = Cluster.from_json((logdir / "cluster.json").read_text())
    assert cluster.all_reduce_efficiency != 1.0  # as measured
    events = json.loads((logdir / "trace.json").read_text())["traceEvents"]
    for what in ("predicted", "measured"):
        found = {(event["tid"], event["name"]) for event in events if event["pid"] == what}
        assert found >= {
            (f"rank {rank}", f"{kind} {microbatch}")
            for rank in range(trained.world_size)
            for kind in ("forward", "backward")
            for microbatch in range(MICROBATCHES)
        }
    if importlib.util.find_spec("matplotlib"):
        root = xml.etree.ElementTree.parse(logdir / "pipeline.svg").getroot()
        assert root.tag.endswith("svg")


@pytest.mark.parametrize("trained", [2], indirect=True)  # any number of workers raises the same
@pytest.mark.parametrize(
    ("case", "message"),
    [
        (
            "a_batch_not_divided",
            "num_microbatches must divide the joint batch of 2 ranks with 8 examples",
        ),
        ("more_stages_than_layers", "cannot be cut into stages"),
        ("more_stages_than_workers", "num_stages"),
        ("a_layer_too_large", "fits no device"),
        ("a_model_without_layers", "tf_libra.boundary"),
        ("evaluated_in_other_stages", "stage 1"),
        ("trained_in_other_stages", "stage 1"),
    ],
)
def test_step_that_cannot_be_a_pipeline_raises_on_every_rank(
    trained: Job, case: str, message: str
) -> None:
    for rank in range(trained.world_size):
        error = trained.error(case, rank)
        assert error.startswith("ValueError: ") and message in error
