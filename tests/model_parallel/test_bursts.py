"""Burst plans on several workers, from an unchanged script."""

import re
from collections.abc import Callable

import numpy as np
import pytest

import tf_libra
from tests.model_parallel import models
from tests.model_parallel.job import make_burst_plan, train_alone
from tests.worker_processes import Job
from tf_libra.internal import formatting
from tf_libra.model_parallel.planning.burst import BurstStrategy, DataParallel
from tf_libra.model_parallel.runtime.burst_planner import BurstPlanner
from tf_libra.reporting.report.logdir_source import LogdirSource
from tf_libra.reporting.tensorboard.queries import runs
from tf_libra.specs.burst import BurstPlan
from tf_libra.specs.scaling_profile import ScalingProfile
from tf_libra.strategies import DeepPool

SAMPLES = 24
OTHERS = {
    "alone": "mlp",
    "beside": "forked",
    "overlapped": "convolutional",
    "without a limit": "mlp",
}
CASES = {
    (2, "given"): {"mlp", "vgg", "inception", "beside", "alone"},
    (2, "planned"): {"mlp", "inception", "without a limit"},
    (4, "given"): {"mlp", "beside", "overlapped"},
    (4, "planned"): {"mlp"},
}
JOB = "bursts.py"


@pytest.fixture(params=[2, 4])
def trained(request: pytest.FixtureRequest, job_of: Callable[[int], Job]) -> Job:
    return job_of(request.param)


def case_names(job: Job, kind: str) -> list[str]:
    names = [name for name in job.cases(0) if name.startswith(kind)]
    assert {name.removeprefix(f"{kind} ") for name in names} == CASES[job.world_size, kind]
    return names


@pytest.mark.parametrize("kind", ["given", "planned"])
def test_burst_trains_like_one_process(trained: Job, kind: str) -> None:
    """Compares results, and synchronized variables with optimizer slots, on every rank."""
    for case in case_names(trained, kind):
        model = case.removeprefix(f"{kind} ")
        steps = len(trained.value(case)["returned"])
        make = getattr(models, OTHERS.get(model, model))
        wanted, every = train_alone(make, steps, SAMPLES, 1)
        for rank in range(trained.world_size):
            value = trained.value(case, rank)
            for number, (got, want) in enumerate(zip(value["returned"], wanted, strict=True)):
                assert got.keys() == want.keys()
                for key in want:
                    np.testing.assert_allclose(
                        got[key],
                        want[key],
                        rtol=5e-3,
                        atol=5e-4,
                        err_msg=f"{case}: {key} of step {number} on rank {rank}",
                    )
            found = trained.arrays(case, rank)
            for variable, value in every.items():
                number, _, _ = variable.partition(" ")
                np.testing.assert_allclose(
                    found[number],
                    value,
                    rtol=1e-3,
                    atol=2e-4,
                    err_msg=f"{case}: {variable} on rank {rank}",
                )


def test_user_provided_plan_is_active_from_the_first_step(trained: Job) -> None:
    counts = {2: [2, 1, 2], 4: [4, 2, 1, 4]}[trained.world_size]
    for case in {"given mlp", "given inception"}.intersection(case_names(trained, "given")):
        value = trained.value(case)
        assert value["num_devices"][:3] == counts[:3]
        assert set(value["phases"]) == {"run"} and value["settled"]


def test_steps_measure_and_then_run_under_the_same_plan_on_all_ranks(trained: Job) -> None:
    for case in case_names(trained, "planned"):
        values = [trained.value(case, rank) for rank in range(trained.world_size)]
        assert all(value["num_devices"] == values[0]["num_devices"] for value in values)
        assert set(values[0]["num_devices"]) <= {1, 2, trained.world_size}
        assert values[0]["phases"] == sorted(values[0]["phases"])
        assert values[0]["phases"][-2:] == ["run", "run"]
        assert values[0]["phases"][0] == "measure" and values[0]["settled"]


@pytest.mark.parametrize("trained", [2], indirect=True)
def test_branches_are_planned_as_blocks(trained: Job) -> None:
    assert not any("chain" in note for note in trained.value("planned inception")["notes"])


def test_explain_lists_the_number_of_ranks_of_each_layer(trained: Job) -> None:
    value = trained.value("given mlp")
    text = value["explained"]
    assert "a burst plan under given" in text
    for count, layer in zip(value["num_devices"], value["layers"], strict=True):
        assert any(
            line.split()[:1] == [str(count)] and line.endswith(f" {layer}")
            for line in text.splitlines()
        )
    planned = trained.value("planned mlp")["explained"].splitlines()
    assert "deeppool, amplification at most 1.5" in planned[0]
    assert planned[1].startswith("one worker: ")
    parallel = trained.value("given beside")["explained"]
    assert f"from rank {trained.world_size // 2} on: " in parallel
    assert max(map(len, [*text.splitlines(), *parallel.splitlines()])) <= 100


def test_logdir_of_a_burst_has_profile_plan_and_timeline(trained: Job) -> None:
    """Commands, the TensorBoard tab and `explain` agree."""
    value, logdir = trained.value("planned mlp"), trained.folder / "logdir"
    plan = BurstPlan.from_json((logdir / "burst.json").read_text())
    profile = ScalingProfile.from_json((logdir / "scaling.json").read_text())
    assert list(plan.num_devices) == value["num_devices"]
    assert plan.profile_fingerprint == profile.fingerprint
    listed = runs(LogdirSource.read(logdir))
    [shown] = listed["bursts"]
    assert [layer["name"] for layer in shown["layers"]] == list(plan.layer_names)
    assert [layer["measured"] for layer in shown["layers"]] == profile.compute_seconds.tolist()
    measured, _ = shown["charts"]
    is_whole = {*plan.num_devices} == {1}  # on this machine
    kinds = {"step"} if is_whole else {"forward", "backward"}
    assert {bar["kind"] for bar in measured["bars"]} >= kinds
    text = value["explained"]
    took = formatting.time(measured["seconds"])
    assert re.search(rf"measured iteration: {re.escape(took)}\npredicted iteration: ", text)
    for chart in shown["charts"]:
        idle = ", ".join(map(formatting.time, chart["idle_seconds"]))
        assert f"{chart['title']}: from rank 0 on, ranks are idle for {idle}" in text.replace(
            "\n", " "
        )


@pytest.mark.parametrize("trained", [2], indirect=True)  # any number of workers raises the same
@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("of other layers", "plan must be of the layers of Trained.step, "),
        ("of more workers", "num_devices must be at most the number of workers, 2, got 4"),
        ("fixed to more", "num_devices must be at most the number of workers, 2, got 4"),
        ("no branches", "search-linear"),
        ("not cut", "cannot be cut into layers: it has no layers"),
        ("one layer", "cannot be cut into layers: it has one layer"),
    ],
)
def test_step_or_plan_that_cannot_run_raises_on_every_rank(
    trained: Job, case: str, message: str
) -> None:
    for rank in range(trained.world_size):
        error = trained.error(case, rank)
        assert error.startswith("ValueError: ") and message in error


@pytest.mark.parametrize("trained", [4], indirect=True)
def test_device_count_that_does_not_divide_the_batch_raises(trained: Job) -> None:
    for rank in range(trained.world_size):
        error = trained.error("not divided", rank)
        assert error.startswith("ValueError: device_counts ") and error.endswith("got 3")


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (DeepPool(device_counts=(1, 3)), "device_counts must divide the batch .* got 3"),
        (DeepPool(device_counts=(1, 8)), "device_counts must be at most the number .* 4, got 8"),
        (DataParallel(num_devices=3), "num_devices must divide the batch .* got 3"),
        (DataParallel(num_devices=8), "num_devices must be at most the number .* 4, got 8"),
    ],
)
def test_invalid_device_counts_raise_with_their_field(
    strategy: BurstStrategy, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        BurstPlanner(strategy, None).check_batch(8, 4)


@pytest.mark.parametrize("trained", [4], indirect=True)
def test_fixed_number_of_ranks_is_measured_with_one_rank_only(trained: Job) -> None:
    """One rank is the base of amplification. Each number takes two times three steps."""
    for rank in range(trained.world_size):
        value = trained.value("fixed", rank)
        assert value["phases"] == ["measure"] * 12 + ["run"] * 2
        assert set(value["num_devices"]) == {3}


def test_amplification_limit_below_1_raises() -> None:
    with pytest.raises(ValueError, match=r"max_amplification.*1,.*0\.5"):
        DeepPool(max_amplification=0.5)
    with pytest.raises(ValueError, match="device_counts must begin with 1, got"):
        DeepPool(device_counts=(2, 4))


@pytest.mark.parametrize("option", [{"max_tuning_steps": 2}, {"cache_dir": "somewhere"}])
def test_data_parallel_option_of_a_burst_raises(option) -> None:
    (name,) = option
    with pytest.raises(ValueError, match=f"^{name} is no option of bursts"):
        tf_libra.optimize(DeepPool(), **option)


def test_plan_option_reads_a_file(tmp_path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"plan: .*plan\.json: "):
        tf_libra.optimize("deeppool", plan=path)
    path.write_text(make_burst_plan(["one", "two"], (1, 2), 2).to_json())
    tf_libra.optimize("deeppool", plan=path)


def test_plan_of_another_strategy_kind_raises() -> None:
    group = tf_libra.TensorGroup(0, 1, 1)
    plan = tf_libra.Plan((group,), ("a",), (4,), 2, "wfbp")
    with pytest.raises(ValueError, match=r"plan.*BurstPlan.*Pla"):
        tf_libra.optimize("deeppool", plan=plan)
    with pytest.raises(ValueError, match=r"plan.*Plan.*BurstPl"):
        tf_libra.optimize("libra", plan=make_burst_plan(["one", "two"], (1,), 2))
