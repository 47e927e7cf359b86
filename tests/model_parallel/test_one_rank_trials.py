"""Trials of `auto` between data parallelism, one rank, pipelines and bursts."""

import dataclasses
import json
import re
from collections.abc import Callable

import numpy as np
import pytest

from tests.model_parallel import models, plain_models
from tests.model_parallel.job import train_alone
from tests.model_parallel.job_results import (
    SAMPLES,
    assert_close,
    check_metrics,
    check_variables,
    without_metrics,
)
from tests.model_parallel.trained_model import Trained
from tests.worker_processes import Job
from tf_libra.cli import main
from tf_libra.planning.family_comparison import FamilyComparison

JOB = "one_rank_trials.py"


@pytest.fixture(params=[2, 3])
def trained(request: pytest.FixtureRequest, job_of: Callable[[int], Job]) -> Job:
    return job_of(request.param)


def without_metric() -> Trained:
    return dataclasses.replace(models.mlp(), metric=None)


def trained_steps(job: Job, case: str) -> int:
    """Returns the number of steps that the case trained, the same on all ranks."""
    [found] = {len(job.value(case, rank)["phases"]) for rank in range(job.world_size)}
    return found


@pytest.mark.parametrize("trained", [2], indirect=True)
@pytest.mark.parametrize(
    ("case", "make"),
    [
        ("compared mlp", models.mlp),
        ("compared sparse", models.sparsely_embedded),
    ],
)
def test_auto_trains_like_one_process_through_trials(
    trained: Job, case: str, make: Callable[[], Trained]
) -> None:
    """Rank 0 is slow where the optimizer of an embedding, Adam, has slots and counts steps.

    It treats two rows of an id, as the words of several examples have, otherwise than their sum.
    One rank alone evaluates the other model by the same function after each step.
    """
    _, variables = train_alone(make, trained_steps(trained, case), SAMPLES, 1)
    check_variables(trained, case, without_metrics(variables))
    for rank in range(trained.world_size):
        value = trained.value(case, rank)
        assert value["settled"] and value["plan"] == "OneRankPlan"
        assert case != "compared sparse" or value["rank"] == 1
        assert value["phases"] == trained.value(case, 0)["phases"]
        assert "race" in value["phases"] and value["phases"][-1] == "run"
        assert value["loss"] == pytest.approx(trained.value(case, 0)["loss"])
        assert value["number"] == len(value["phases"])
        first, *_ = value["explained"].splitlines()
        assert first.startswith("2 workers train ")


@pytest.mark.parametrize("trained", [2], indirect=True)
@pytest.mark.parametrize(
    ("model", "named"),
    [
        ("metric", "'Cast/ReadVariableOp' takes the state of a metric"),
        ("summed", "variable "),
        ("failing", "InvalidArgumentError: "),
        ("slow", "a step took "),
    ],
)
def test_auto_leaves_out_one_rank_if_weights_would_differ(
    trained: Job, model: str, named: str
) -> None:
    for rank in range(trained.world_size):
        value = trained.value(f"compared {model}", rank)
        assert value["settled"] and value["plan"] == "Plan"
        explained = " ".join(value["explained"].split())
        assert f"one-rank is left out: {named}" in explained
        assert model != "summed" or f"deeppool is left out: {named}" in explained


@pytest.mark.parametrize("trained", [2], indirect=True)
def test_auto_goes_on_with_one_rank_whose_differences_are_allowed(trained: Job) -> None:
    """Normalizes the joint batch, draws for it, and calls Python alone."""
    ranks = [trained.value("compared allowed", rank) for rank in range(2)]
    for value in ranks:
        assert value["settled"] and value["plan"] == "OneRankPlan", value["explained"]
        assert "left out" not in value["explained"] and value["was_current"]
    first, other = (trained.arrays("compared allowed", rank) for rank in range(2))
    for name, variable in first.items():
        np.testing.assert_array_equal(other[name], variable)


@pytest.mark.parametrize("trained", [2], indirect=True)
def test_auto_leaves_out_stages_of_sparse_gradients(trained: Job) -> None:
    for rank in range(trained.world_size):
        explained = " ".join(trained.value("compared sparse", rank)["explained"].split())
        for family in ("spp", "deeppool"):
            assert f"{family} is left out: gradients are sparse" in explained


def test_auto_trains_rows_that_are_added_in_stages(trained: Job) -> None:
    """Examples of one rank and of several ones have the same words. A step may read their rows."""
    plan = {2: "PipelinePlan", 3: "BurstPlan"}[trained.world_size]
    num_steps = trained_steps(trained, "compared rows")
    make = {2: plain_models.scattered, 3: plain_models.words}[trained.world_size]
    _, variables = train_alone(make, num_steps, SAMPLES, 1)
    check_variables(trained, "compared rows", variables)
    for rank in range(trained.world_size):
        value = trained.value("compared rows", rank)
        assert value["settled"] and value["plan"] == plan, value["explained"]
        assert "left out" not in value["explained"]


@pytest.mark.parametrize("trained", [2], indirect=True)
@pytest.mark.parametrize("case", ["compared slow", "compared failing"])
def test_steps_that_are_undone_leave_variables_as_they_were(trained: Job, case: str) -> None:
    """Such a step was timed, or has failed on the computing rank alone."""
    _, variables = train_alone(without_metric, trained_steps(trained, case), SAMPLES, 1)
    check_variables(trained, case, variables)


@pytest.mark.parametrize("trained", [2], indirect=True)
def test_values_that_each_rank_chooses_are_averaged(trained: Job) -> None:
    """A scalar argument, and a variable: one rank would compute with its own for all examples.

    The last change is another function's, whose trials begin while only one rank has the weight.
    """
    for rank in range(2):
        plans, changes = zip(*trained.value("own_values", rank), strict=True)
        assert plans == ("OneRankPlan", "Plan", "Plan", "OneRankPlan", "OneRankPlan")
        for change, scale in zip(changes, (1.0, 1.5, 1.5, 3.0, 3.0), strict=True):
            assert change == pytest.approx([scale] * 4)


@pytest.mark.parametrize("trained", [3], indirect=True)
def test_auto_returns_results_of_own_examples_while_one_rank_trains(trained: Job) -> None:
    num_steps = trained_steps(trained, "compared own")
    expected, variables = train_alone(models.mlp, num_steps, SAMPLES, 1)
    check_variables(trained, "compared own", without_metrics(variables))
    check_metrics(trained, "compared own", models.mlp, num_steps)
    share = SAMPLES // trained.world_size
    losses = []
    for rank in range(trained.world_size):
        value = trained.value("compared own", rank)
        assert value["settled"] and value["plan"] == "OneRankPlan"
        losses.append(value["loss"])
        logits = expected[-1]["logits"][rank * share : (rank + 1) * share]
        assert_close(trained.arrays("compared own", rank)["result"], logits, f"rank {rank}")
    assert len(set(losses)) == trained.world_size
    assert np.mean(losses) == pytest.approx(expected[-1]["loss"], rel=1e-3)


@pytest.mark.parametrize("trained", [2], indirect=True)
@pytest.mark.parametrize(("chosen", "plan"), [("spp", "PipelinePlan"), ("deeppool", "BurstPlan")])
def test_auto_trains_like_one_process_through_trials_of_all_families(
    trained: Job, chosen: str, plan: str
) -> None:
    """Every rank has current variables, and results and metrics of its own examples."""
    case = f"compared {chosen}"
    num_steps = trained_steps(trained, case)
    expected, variables = train_alone(models.mlp, num_steps, SAMPLES, 1)
    check_variables(trained, case, without_metrics(variables))
    check_metrics(trained, case, models.mlp, num_steps)
    share = SAMPLES // trained.world_size
    losses = []
    for rank in range(trained.world_size):
        value = trained.value(case, rank)
        assert value["settled"] and value["plan"] == plan, value["explained"]
        assert value["was_current"] and value["remeasured"]
        if chosen == "spp":
            label = f"  spp (num_microbatches={value['num_microbatches']}) "
            assert label in value["explained"]
        first, *others = value["traced_sizes"]
        assert first == share and len(set(others)) == len(others)
        losses.append(value["loss"])
        logits = expected[-1]["logits"][rank * share : (rank + 1) * share]
        assert_close(trained.arrays(case, rank)["result"], logits, f"rank {rank}")
    assert len(set(losses)) == trained.world_size
    assert np.mean(losses) == pytest.approx(expected[-1]["loss"], rel=1e-3)


@pytest.mark.parametrize("trained", [2], indirect=True)
@pytest.mark.parametrize(("chosen", "plan"), [("spp", "PipelinePlan"), ("deeppool", "BurstPlan")])
def test_next_job_goes_on_with_stages_and_plan_follows_them(
    trained: Job, chosen: str, plan: str
) -> None:
    """The same stages, although both measure layers before their first step."""
    _, variables = train_alone(without_metric, 3, SAMPLES, 1)
    check_variables(trained, f"next {chosen}", variables)
    for value in (trained.value(f"next {chosen}", rank) for rank in range(2)):
        assert value["settled"] == [False, True, True] and value["same"]
        assert value["plan"] == plan
        assert len(set(value["fingerprints"])) == 1
        assert "interleaved steps of an earlier job" in " ".join(value["explained"].split())


@pytest.mark.parametrize("trained", [2], indirect=True)
def test_stages_of_an_earlier_job_are_planned_again_once_step_times_have_changed(
    trained: Job,
) -> None:
    first, second = (trained.value("next deeppool", rank)["after drift"] for rank in range(2))
    assert first[:2] == second[:2] == ["BurstPlan", 1]
    losses, expected = zip(first[2], second[2], strict=True)
    assert np.mean(losses) == pytest.approx(expected[0], rel=1e-3)


@pytest.mark.parametrize("trained", [2], indirect=True)
def test_pipelines_train_a_joint_batch_that_one_rank_has_no_memory_for(trained: Job) -> None:
    _, variables = train_alone(without_metric, trained_steps(trained, "large"), SAMPLES, 1)
    check_variables(trained, "large", variables)
    for value in (trained.value("large", rank) for rank in range(2)):
        assert value["settled"] and value["plan"] == "PipelinePlan", value["explained"]
        assert re.search("^  spp +[0-9.]+ m?s .* active$", value["explained"], re.MULTILINE)
        assert "one-rank is left out: tensors of the joint batch" in value["explained"]
        assert not value["explained"].startswith("2 workers")  # one worker is no alternative


@pytest.mark.parametrize("trained", [2], indirect=True)
def test_saved_families_are_compared_for_the_same_and_for_other_clusters(
    trained: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    logdir = trained.folder / "families with spp"
    saved = FamilyComparison.from_json((logdir / "families.json").read_text())
    assert saved.active == "spp" and saved.layers is not None and saved.batch == SAMPLES
    given = [f"--profile={logdir}", f"--cost={logdir}"]
    assert main(["compare", *given]) == 0
    printed, _, _ = capsys.readouterr().out.partition("\n\n")
    rows = "\n".join(line for line in printed.splitlines() if line.startswith("  "))
    assert rows.count("\n") == 3 and rows in trained.value("next spp", 0)["compared"]
    for flags, workers in ((["--rate=1mbit", "--batch=48"], 2), (["--workers=3"], 3)):
        assert main(["compare", *given, *flags, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)["families"]
        families = FamilyComparison.from_document(found)
        seconds = {row.name: row.predicted_seconds for row in families.rows}
        assert (families.num_workers, len(seconds)) == (workers, 3)
        assert families.active == min(seconds, key=lambda name: seconds[name] or 0.0)


def check_failed(job: Job, case: str, reasons: dict[str, str]) -> None:
    """Checks that data parallelism has trained, and why families are left out, on all ranks."""
    _, variables = train_alone(without_metric, trained_steps(job, case), SAMPLES, 1)
    check_variables(job, case, variables)
    for rank in range(job.world_size):
        value = job.value(case, rank)
        assert value["settled"] and value["plan"] == "Plan"
        explained = " ".join(value["explained"].split())
        for name, reason in reasons.items():
            assert f"{name} is left out: {reason}" in explained
        assert value["number"] == len(value["phases"])


@pytest.mark.parametrize("trained", [3], indirect=True)
def test_auto_leaves_out_families_that_fail_on_one_rank_alone(trained: Job) -> None:
    """Preparing a step, or in a step, whose computations have changed variables, and are undone."""
    last = trained.world_size - 1
    reasons = {
        "spp": f"ResourceExhaustedError: no memory (on rank {last})",
        "deeppool": f"RuntimeError: broken here (on rank {last})",
        "one-rank": f"its measurements have not ended after {trained.world_size} steps",
    }
    check_failed(trained, "failed", reasons)


@pytest.mark.parametrize("trained", [3], indirect=True)
def test_auto_undoes_a_step_that_fails_on_one_rank_in_a_later_trial(trained: Job) -> None:
    """In a computation, or when variables of another family are needed."""
    last = trained.world_size - 1
    case = "failed_in_turn"
    failure = f"ResourceExhaustedError: no memory (on rank {last})"
    check_failed(trained, case, {"spp": failure, "one-rank": "RuntimeError: variable '"})
    explained = " ".join(trained.value(case, 0)["explained"].split())
    assert f"rank {last} cannot receive " in explained and explained.count(failure) == 2
    for rank in range(trained.world_size):
        assert "race" in trained.value(case, rank)["phases"]


@pytest.mark.parametrize("trained", [3], indirect=True)
def test_next_job_goes_on_with_the_family_until_step_times_change(trained: Job) -> None:
    """Also batches of another size or type on one rank, and the plan given as `plan=`."""
    _, variables = train_alone(without_metric, 4, SAMPLES, 1)
    check_variables(trained, "next_job", variables)
    for rank in range(trained.world_size):
        value = trained.value("next_job", rank)
        first, second = value["settled_after"]
        assert second == 2 < first <= 150
        kinds = ["OneRankPlan", "OneRankPlan", "Plan", "OneRankPlan", "Plan", "Plan"]
        assert value["kinds"] == kinds
        assert "interleaved steps of an earlier job" in " ".join(value["explained"].split())
        assert value["given"] == ["OneRankPlan", True]
