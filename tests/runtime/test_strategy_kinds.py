"""Strategies and options by kind."""

from pathlib import Path
from typing import Any

import pytest

import tf_libra
from tf_libra import strategies
from tf_libra.model_parallel.planning.one_rank import OneRank
from tf_libra.runtime.strategy_kinds import (
    KINDS,
    all_options,
    has_joint_results,
    resolve_options,
    resolve_plan,
    resolve_strategy,
)
from tf_libra.specs.one_rank import OneRankPlan
from tf_libra.specs.pipeline import PipelinePlan, PipelineStage
from tf_libra.strategies import Spp

PIPELINE = PipelinePlan(
    (PipelineStage(0, 1, (0,), "F0 B0"), PipelineStage(1, 2, (1,), "F0 B0")), ("a", "b"), 2, "spp"
)


@pytest.mark.parametrize(
    ("strategy", "kind"),
    [
        ("libra", "data parallelism"),
        (strategies.Wfbp(), "data parallelism"),
        ("spp", "pipelines"),
        ("data-parallel", "pipelines"),
        (strategies.Spp(num_microbatches=2), "pipelines"),
        ("deeppool", "bursts"),
    ],
)
def test_strategy_has_one_kind(strategy: Any, kind: str) -> None:
    found, resolved = resolve_strategy(strategy)
    assert found is KINDS[kind]
    assert resolved.name == getattr(strategy, "name", strategy)
    assert has_joint_results(strategy) == (kind != "data parallelism")


def test_results_are_joint_where_a_strategy_says_so() -> None:
    assert has_joint_results(strategies.Auto(allow=("joint_results",)))
    assert not has_joint_results(strategies.Auto())
    assert not has_joint_results(strategies.OneRank(results="own"))


@pytest.mark.parametrize("strategy", ["magic", None, 3, strategies.Libra])
def test_unknown_strategy_is_an_error(strategy: Any) -> None:
    with pytest.raises(ValueError, match=r"^strategy must be .*, got "):
        resolve_strategy(strategy)


def test_unknown_name_is_reported_with_the_names_of_all_kinds() -> None:
    with pytest.raises(ValueError, match=r"libra.*spp.*deeppool.*, got 'magic'"):
        resolve_strategy("magic")


def resolve(strategy: str, **requested: Any) -> Any:
    kind, found = resolve_strategy(strategy)
    return resolve_options(kind, {"strategy": found, **requested})


def test_options_hold_the_strategy_of_their_kind() -> None:
    for name in ("libra", "spp", "deeppool"):
        assert resolve(name).strategy.name == name


@pytest.mark.parametrize(
    ("strategy", "requested"),
    [
        ("spp", {"cache_dir": "somewhere"}),
        ("spp", {"max_tuning_steps": 10}),
        ("deeppool", {"cache_dir": "somewhere"}),
    ],
)
def test_option_of_another_kind_is_an_error_unless_it_is_the_default(
    strategy: str, requested: dict[str, Any]
) -> None:
    [name] = requested
    with pytest.raises(ValueError, match=rf"^{name} is no option of .*{strategy!r}, got "):
        resolve(strategy, **requested)
    defaults = {option.name: option.default for option in all_options()}
    assert resolve(strategy, **{name: defaults[name]}) == resolve(strategy)


@pytest.mark.parametrize("strategy", ["spp", "deeppool"])
def test_staged_kinds_take_neither_other_engines_nor_numeric_checks(strategy: str) -> None:
    assert resolve(strategy).engine == "lanes"
    for requested in ({"engine": "horovod"}, {"check_numerics": "skip"}):
        with pytest.raises(ValueError, match=f"^{next(iter(requested))} must be "):
            resolve(strategy, **requested)


def test_unknown_option_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="'magic'"):
        resolve("libra", magic=1)


def test_every_option_is_listed_once() -> None:
    paths = [option.path for option in all_options()]
    assert len(paths) == len(set(paths))
    assert paths[0] == "strategy" and {"check_numerics", "tuning.max_seconds"} < set(paths)


@pytest.mark.parametrize(
    ("plan", "name", "followed_by"),
    [
        (OneRankPlan(1, 2), "steps on one rank", OneRank(results="own")),
        (PIPELINE, "pipelines", Spp(results="own")),
    ],
)
def test_plan_of_another_kind_is_followed_by_a_strategy_of_that_kind(
    tmp_path: Path, plan: Any, name: str, followed_by: Any
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(plan.to_json())
    for requested in (plan, path, str(path)):
        kind, strategy = resolve_plan(requested)
        assert (kind.name, strategy) == (name, followed_by)
        options = tf_libra.optimize(plan=requested).keywords["options"]
        assert options.plan == plan
    path.write_text("{}")
    for other in (None, path, tmp_path / "none", "\0"):
        assert resolve_plan(other) is None
