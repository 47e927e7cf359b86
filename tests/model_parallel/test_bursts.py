"""Burst plans on real workers, from an unchanged script."""

import re
from collections.abc import Callable

import numpy as np
import pytest

import tf_libra
from tests.model_parallel import models
from tests.model_parallel.job import make_burst_plan, train_alone
from tests.worker_processes import Job
from tf_libra.internal import formatting
from tf_libra.model_parallel.planning.burst_planner import BurstPlanner
from tf_libra.planning.burst import BurstStrategy, DataParallel
from tf_libra.reporting.report.logdir_source import LogdirSource
from tf_libra.reporting.tensorboard.queries import runs
from tf_libra.specs.burst import BurstPlan
from tf_libra.specs.scaling_profile import ScalingProfile
from tf_libra.strategies import DeepPool

SAMPLES = 24
OTHERS = {"beside": "inception", "without a limit": "mlp", "and written": "mlp"}


@pytest.fixture(scope="module", params=[2, 4])
def trained(request: pytest.FixtureRequest, run_job: Callable[..., Job]) -> Job:
    return run_job("bursts.py", request.param)


def succeeded(job: Job, kind: str) -> list[str]:
    found = [name for name in job.cases(0) if name.startswith(kind)]
    assert len(found) >= 3
    return found


@pytest.mark.parametrize("kind", ["given", "planned"])
def test_weights_and_what_a_step_returns_are_those_of_one_process(trained: Job, kind: str) -> None:
    """On every rank, once variables are synchronized; optimizers' own variables included."""
    for case in succeeded(trained, kind):
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
            for variable, one in every.items():
                number, _, _ = variable.partition(" ")
                np.testing.assert_allclose(
                    found[number],
                    one,
                    rtol=1e-3,
                    atol=2e-4,
                    err_msg=f"{case}: {variable} on rank {rank}",
                )


def test_layers_run_as_the_plan_says(trained: Job) -> None:
    counts = {2: [2, 1, 2], 4: [4, 2, 1, 4]}[trained.world_size]
    for case in ("given vgg", "given inception"):
        value = trained.value(case)
        assert value["num_devices"][:3] == counts[:3]
        assert set(value["phases"]) == {"run"} and value["settled"]


def test_steps_measure_and_then_run_under_one_plan_of_all_ranks(trained: Job) -> None:
    for case in succeeded(trained, "planned"):
        values = [trained.value(case, rank) for rank in range(trained.world_size)]
        assert all(one["num_devices"] == values[0]["num_devices"] for one in values)
        assert set(values[0]["num_devices"]) <= {1, 2, trained.world_size}
        assert values[0]["phases"] == sorted(values[0]["phases"])
        assert values[0]["phases"][-2:] == ["run", "run"]
        assert values[0]["phases"][0] == "measure" and values[0]["settled"]


def test_branches_are_planned_as_blocks(trained: Job) -> None:
    assert not any("chain" in note for note in trained.value("planned inception")["notes"])


def test_explain_says_how_many_ranks_each_layer_has(trained: Job) -> None:
    value = trained.value("given vgg")
    text = value["explained"]
    assert "a burst plan under given" in text
    for count, layer in zip(value["num_devices"], value["layers"], strict=True):
        assert any(
            line.split()[:1] == [str(count)] and line.endswith(f" {layer}")
            for line in text.splitlines()
        )
    assert "deeppool, amplification at most 1.5" in trained.value("planned vgg")["explained"]
    beside = trained.value("given beside")["explained"]
    assert f"from rank {trained.world_size // 2} on: " in beside
    assert max(map(len, [*text.splitlines(), *beside.splitlines()])) <= 100


def test_logdir_has_the_plan_what_it_was_made_of_and_what_ranks_did(trained: Job) -> None:
    """As the commands read it, as the tab shows it, and as `explain` says it."""
    value, logdir = trained.value("planned and written"), trained.folder / "logdir"
    plan = BurstPlan.from_json((logdir / "burst.json").read_text())
    profile = ScalingProfile.from_json((logdir / "scaling.json").read_text())
    assert list(plan.num_devices) == value["num_devices"]
    assert plan.profile_fingerprint == profile.fingerprint
    listed = runs(LogdirSource.read(logdir))
    [shown] = listed["bursts"]
    assert [layer["name"] for layer in shown["layers"]] == list(plan.layer_names)
    assert [layer["measured"] for layer in shown["layers"]] == profile.compute_seconds.tolist()
    measured, _ = shown["charts"]
    assert {bar["kind"] for bar in measured["bars"]} >= {"forward", "backward"}
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
        ("no branches", "search-linear takes a chain of layers, got a model with branches"),
        ("not cut", "cannot be cut into layers: it has no layers"),
        ("one layer", "cannot be cut into layers: it has one layer with trained variables"),
    ],
)
def test_what_cannot_run_is_refused_on_every_rank(trained: Job, case: str, message: str) -> None:
    for rank in range(trained.world_size):
        error = trained.error(case, rank)
        assert error.startswith("ValueError: ") and message in error


@pytest.mark.parametrize("trained", [4], indirect=True)
def test_a_number_of_ranks_that_does_not_divide_the_batch_is_refused(trained: Job) -> None:
    for rank in range(trained.world_size):
        error = trained.error("not divided", rank)
        assert "device_counts must divide the batch of all ranks, 4 times 8 samples, got 3" in error


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (DeepPool(device_counts=(1, 3)), "device_counts must divide the batch .* got 3"),
        (DeepPool(device_counts=(1, 8)), "device_counts must be at most the number .* 4, got 8"),
        (DataParallel(num_devices=3), "num_devices must divide the batch .* got 3"),
        (DataParallel(num_devices=8), "num_devices must be at most the number .* 4, got 8"),
    ],
)
def test_what_the_user_has_set_is_named(strategy: BurstStrategy, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BurstPlanner(strategy, None).check_batch(8, 4)


@pytest.mark.parametrize("trained", [4], indirect=True)
def test_a_fixed_number_of_ranks_is_all_that_is_measured(trained: Job) -> None:
    """One rank is measured, too, as the base of amplification; each number in twice three steps."""
    for rank in range(trained.world_size):
        value = trained.value("fixed", rank)
        assert value["phases"] == ["measure"] * 12 + ["run"] * 2
        assert set(value["num_devices"]) == {3}


def test_a_limit_below_1_is_refused() -> None:
    with pytest.raises(ValueError, match=r"max_amplification must be at least 1, got 0\.5"):
        DeepPool(max_amplification=0.5)
    with pytest.raises(ValueError, match="device_counts must begin with 1, got"):
        DeepPool(device_counts=(2, 4))


@pytest.mark.parametrize("option", [{"threads": 2}, {"cache_dir": "somewhere"}])
def test_options_of_data_parallelism_are_refused(option) -> None:
    (name,) = option
    with pytest.raises(ValueError, match=f"^{name} is no option of bursts"):
        tf_libra.optimize(DeepPool(), **option)


def test_a_plan_is_read_from_a_file(tmp_path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"plan: .*plan\.json: "):
        tf_libra.optimize("deeppool", plan=path)
    path.write_text(make_burst_plan(["one", "two"], (1, 2), 2).to_json())
    tf_libra.optimize("deeppool", plan=path)


def test_a_plan_of_data_parallelism_is_none_of_bursts() -> None:
    group = tf_libra.TensorGroup(0, 1, 1)
    plan = tf_libra.Plan((group,), ("a",), (4,), 2, "wfbp")
    with pytest.raises(ValueError, match="plan must be a BurstPlan under this strategy, got a Pla"):
        tf_libra.optimize("deeppool", plan=plan)
    with pytest.raises(ValueError, match="plan must be a Plan under this strategy, got a BurstPl"):
        tf_libra.optimize("libra", plan=make_burst_plan(["one", "two"], (1,), 2))
