"""`auto` trains every kind of model through changes of family, and families share checkpoints."""

import itertools
from collections.abc import Callable

import pytest

from tests.model_parallel.job import batches, cached_model, train_alone
from tests.model_parallel.job_results import (
    SAMPLES,
    assert_close,
    check_variables,
    read,
    without_metrics,
)
from tests.model_parallel.kinds_of_models import KINDS, kinds_of_job, with_slots
from tests.worker_processes import Job

JOB = "family_switches.py"
FAMILIES = ("data parallelism", "one-rank", "spp", "deeppool")
PLANS = {"Plan", "OneRankPlan", "PipelinePlan", "BurstPlan"}
# Halves have ten bits, and every rank rounds its own sums.
TOLERANCES = {"mixed precision": {"rtol": 2e-2, "atol": 2e-3}}


@pytest.fixture(params=[2, 3])
def trained(request: pytest.FixtureRequest, job_of: Callable[[int], Job]) -> Job:
    return job_of(request.param)


def plans_of(job: Job, name: str) -> list[str]:
    """Returns the kinds of plans, by step, which are the same on all ranks."""
    [plans] = {tuple(job.value(name, rank)["plans"]) for rank in range(job.world_size)}
    return list(plans)


@pytest.mark.parametrize(
    ("trained", "name"),
    [(size, name) for size in (2, 3) for name in kinds_of_job(size) if name != "batch norm"],
    indirect=["trained"],
)
def test_auto_trains_every_kind_of_model_through_switches(trained: Job, name: str) -> None:
    """Every rank has the values of one process, without synchronization."""
    plans = plans_of(trained, name)
    explained = trained.value(name)["explained"]
    assert "is left out" not in explained, explained
    switches = [pair for pair in itertools.pairwise(plans) if len({*pair} & PLANS) == 2]
    assert len(switches) >= 2, (switches, explained)
    _, variables = train_alone(KINDS[name], len(plans), SAMPLES, 1)
    check_variables(trained, name, without_metrics(variables), **TOLERANCES.get(name, {}))


def test_every_family_wins_trials(trained: Job) -> None:
    assert {plans_of(trained, name)[-1] for name in kinds_of_job(trained.world_size)} == PLANS


@pytest.mark.parametrize("trained", [3], indirect=True)
def test_batch_norm_leaves_all_other_families_out(trained: Job) -> None:
    """Weights are those of data parallelism: statistics are of the examples of a rank."""
    case = "batch norm"
    plans = plans_of(trained, case)
    assert {*plans} <= {"Plan", "NoneType"}
    explained = " ".join(trained.value(case)["explained"].split())
    for family in FAMILIES[1:]:
        assert f"{family} is left out: batch statistics" in explained
    _, variables = train_alone(KINDS[case], len(plans), SAMPLES, trained.world_size)
    moving = ("moving_mean", "moving_variance")
    expected = {name: value for name, value in variables.items() if not name.endswith(moving)}
    check_variables(trained, case, expected)


@pytest.mark.parametrize("trained", [2], indirect=True)
@pytest.mark.parametrize("source", FAMILIES)
@pytest.mark.parametrize("family", FAMILIES)
def test_checkpoint_of_a_family_loads_under_another(trained: Job, source: str, family: str) -> None:
    """Rank 0 alone has written it. The slots of the optimizer, Adam, are loaded, too."""
    _, variables = train_alone(with_slots, 3, SAMPLES, 1)
    check_variables(trained, "checkpoints", variables, prefix=f"{source}, {family}: ")


@pytest.mark.parametrize("trained", [2], indirect=True)
@pytest.mark.parametrize("family", FAMILIES)
def test_rank_0_alone_evaluates_and_loads_another_model(trained: Job, family: str) -> None:
    """Training goes on as if it had not done so."""
    _, variables = train_alone(with_slots, 3, SAMPLES, 1)
    found = trained.arrays("checkpoints", 0)
    for name, value in variables.items():
        number, _, _ = name.partition(" ")
        assert_close(found[f"{family}: loaded {number}"], value, name)
    alone = cached_model(with_slots, -1)
    for variable, value in zip(alone.trained.every_variable, variables.values(), strict=True):
        variable.assign(value)
    images, _ = batches(4, SAMPLES)[3]
    expected = read(alone.trained.call(images))
    assert_close(found[f"{family}: evaluated"], expected, family)
    _, variables = train_alone(with_slots, 4, SAMPLES, 1)
    check_variables(trained, "checkpoints", variables, prefix=f"{family}: ")


@pytest.mark.parametrize("trained", [2], indirect=True)
def test_ranks_that_train_a_variable_decide_whether_a_load_by_rank_0_alone_counts(
    trained: Job,
) -> None:
    """Values of several ranks that train a variable differ, and data parallelism names one."""
    names, variables = zip(*train_alone(with_slots, 4, SAMPLES, 1)[1].items(), strict=True)
    first, second = (trained.arrays("checkpoints", rank) for rank in range(2))
    for family in ("one-rank", "spp"):
        for number in range(len(names)):
            name = f"{family}: after {number}"
            if not names[number].endswith(" iteration"):  # which every rank counts by itself
                assert_close(first[name], second[name], name)
    for rank in range(2):
        error = trained.error("checkpoints", rank)
        assert error.startswith("ValueError: ") and "variable['adam/deep0_0_momentum']" in error
    alone = cached_model(with_slots, -1).trained
    for variable, value in zip(alone.every_variable, variables, strict=True):
        variable.assign(value)
    alone.accumulated(*batches(1, SAMPLES)[0], 1)
    for number, variable in enumerate(alone.every_variable):  # the last rank has trained it
        assert_close(first[f"one-rank: after {number}"], read(variable), names[number])
