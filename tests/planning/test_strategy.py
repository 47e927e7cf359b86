"""A strategy from outside of the package: registered, it is planned, compared and requested."""

import dataclasses
import json
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import pytest

import tf_libra
from tests.jobs.external_planner import Halves
from tests.worker_processes import Job
from tf_libra import config, strategies
from tf_libra.cli import main
from tf_libra.planning.compare import compare, every_strategy
from tf_libra.planning.strategy import REGISTRY, FixedThreads

PROFILE = tf_libra.BackwardProfile.from_arrays([4_000_000, 1000, 6_000_000], [4e-3, 1e-4, 5e-3])
COST = tf_libra.ContentionModel(8, 1e-5, (1.0, 0.08), (2e9, 1.2e9, 0.4), (2.4e9, 1.3e9, 0.5))


@pytest.fixture
def halves() -> Iterator[type]:
    """Known while the test runs."""
    yield strategies.register(Halves)
    REGISTRY.forget("halves")


def test_external_strategy_plans_by_name_and_object(halves):
    assert [g.stop for g in tf_libra.make_plan(PROFILE, COST, "halves").groups] == [2, 3]
    plan = tf_libra.make_plan(PROFILE, COST, halves(num_threads=2))
    assert plan.strategy == "halves"
    assert {g.num_threads for g in plan.groups} == {2}
    assert plan.predicted_seconds == tf_libra.simulate(PROFILE, plan, COST).backward_seconds


def test_external_strategy_is_in_every_table(halves, tmp_path, capsys):
    rows = {row.name: row for row in compare(PROFILE, COST, every_strategy({"num_threads": 4}))}
    assert [g.num_threads for g in rows["halves"].plan.groups] == [4, 4]
    (tmp_path / "profile.json").write_text(PROFILE.to_json())
    (tmp_path / "cost.json").write_text(COST.to_json())
    inputs = [f"--profile={tmp_path}/profile.json", f"--cost={tmp_path}/cost.json"]
    assert main(["compare", *inputs]) == 0
    assert "halves" in capsys.readouterr().out


def test_external_argument_is_a_flag(halves, tmp_path, capsys):
    (tmp_path / "profile.json").write_text(PROFILE.to_json())
    (tmp_path / "cost.json").write_text(COST.to_json())
    inputs = [f"--profile={tmp_path}/profile.json", f"--cost={tmp_path}/cost.json"]
    assert main(["plan", *inputs, "--strategy=halves", "--num_threads=2", "--share=0.3"]) == 0
    plan = tf_libra.Plan.from_json(capsys.readouterr().out)
    assert [(g.stop, g.num_threads) for g in plan.groups] == [(1, 2), (3, 2)]
    assert main(["compare", *inputs, "--share=1", "--json"]) == 0
    rows = {row["strategy"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["halves"]["groups"] == 1
    assert main(["plan", "--help"]) == 0
    assert "--share: share of the tensors in the first group (halves)" in capsys.readouterr().out
    for flag_values, reported in (
        (["--strategy=halves", "--share=0"], "share must be greater than 0"),
        (["--strategy=halves", "--share=most"], "flag --share=most"),
        (["--strategy=wfbp", "--share=0.5"], "share is not an argument of wfbp"),
    ):
        assert main(["plan", *inputs, *flag_values]) == 2
        assert reported in capsys.readouterr().err


def test_argument_named_as_a_command_flag_is_rejected(capsys):
    """Training would take it as the strategy's argument, and a command as its own flag."""

    @strategies.register
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Shared(Halves):
        name: ClassVar[str] = "shared"
        workers: int = 1

    try:
        assert main(["plan", "--help"]) == 2
        reported = capsys.readouterr().err
        assert reported.startswith(
            "tf-libra plan: workers of strategy 'shared' must have another name"
        )
    finally:
        REGISTRY.forget("shared")


@pytest.mark.parametrize("rank", [0, 1])
def test_external_strategy_trains(plans: Job, rank: int) -> None:
    found = plans.value("planner_from_outside", rank)
    assert found == {"phase": "run", "strategy": "halves", "stops": [3, 6], "threads": [2, 2]}
    saved = plans.arrays("planner_from_outside", rank)
    names = [name.removeprefix("alone/") for name in saved if name.startswith("alone/")]
    assert len(names) == 6
    for name in names:
        np.testing.assert_allclose(saved[f"ours/{name}"], saved[f"alone/{name}"], rtol=1e-9)


def test_training_accepts_external_strategy(halves):
    assert config.load_plan(tf_libra.make_plan(PROFILE, COST, "halves")).strategy == "halves"
    assert tf_libra.optimize("halves") is not None


def test_invalid_registration_is_named(halves):
    with pytest.raises(ValueError, match=r"name.*'halves'"):
        strategies.register(
            dataclasses.make_dataclass(
                "Other", [], bases=(FixedThreads,), namespace={"name": "halves"}, frozen=True
            )
        )
    with pytest.raises(ValueError, match="must be a frozen dataclass"):
        strategies.register(type("Plain", (), {"name": "plain"}))
    with pytest.raises(ValueError, match="name must be a text"):
        strategies.register(dataclasses.make_dataclass("Nameless", [], frozen=True))
    assert "plain" not in strategies.BY_NAME

    @dataclasses.dataclass(frozen=True)
    class Demanding:
        amount: int
        name: ClassVar[str] = "demanding"

    with pytest.raises(ValueError, match=r"must have a default for every argument: .*amount"):
        strategies.register(Demanding)
    with pytest.raises(ValueError, match=r"strategy.*'demanding'"):
        REGISTRY.forget("demanding")

    @dataclasses.dataclass(frozen=True)
    class Bare:
        name: ClassVar[str] = "bare"

        def draft(self, profile, cost):
            raise NotImplementedError

    reported = (
        r"'bare' must have chooses_threads, tuned_by, .*races.*FixedThreads or .*ChosenThreads"
    )
    with pytest.raises(ValueError, match=reported):
        strategies.register(Bare)


def test_unregistered_object_is_rejected():
    with pytest.raises(ValueError, match=r"tf_libra\.strategies"):
        tf_libra.make_plan(PROFILE, COST, object())


def test_plan_forbidden_by_the_cost_model_is_named():
    greedy = strategies.Wfbp(num_threads=64)
    [row] = compare(PROFILE, COST, {"greedy": greedy})
    assert row.plan is None and row.timeline is None
    assert "64" in row.problem
