"""Tuners and strategies registered outside the package."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

import tf_libra
from tests.autotune.machine import PROFILE, Machine, drive
from tf_libra import strategies
from tf_libra.autotune import Budget, Phase, Tuner, tuner, uses_warm_start
from tf_libra.autotune.model_tuner import measure_and_plan
from tf_libra.autotune.tuner import TuningProblem
from tf_libra.planning.data_parallel import aiacc
from tf_libra.planning.strategy import (
    REGISTRY,
    ChosenThreads,
    Draft,
    FixedThreads,
    Strategy,
    groups_from_stops,
)

HUNDRED = Budget(100, 1e6)


@dataclass(frozen=True, kw_only=True)
class Thirds(ChosenThreads):
    """Searchable strategy of three unit sizes, packed as AIACC packs units."""

    name: ClassVar[str] = "thirds"
    tuned_by: ClassVar[str] = "search"
    threads: tuple[int, ...] = (1, 2)
    streams: tuple[int, ...] = (1, 2)
    exploration: float = 0.2
    seed: int = 0

    def unit_sizes(self, profile):
        total = int(profile.num_bytes.sum())
        return (-(-total // 3), total)

    def pack(self, profile, setting):
        return aiacc.pack(profile, setting)

    def draft(self, profile, cost):
        stops = sorted({-(-len(profile.tensors) * part // 3) for part in (1, 2, 3)})
        return Draft(groups_from_stops(stops, [self.threads[0]] * len(stops)))


@dataclass(frozen=True, kw_only=True)
class Odd(FixedThreads):
    name: ClassVar[str] = "odd"
    tuned_by: ClassVar[str] = "search"

    def draft(self, profile, cost):
        return Draft(groups_from_stops([len(profile.tensors)], [1]))


@dataclass(frozen=True, kw_only=True)
class Patient(strategies.Libra):
    name: ClassVar[str] = "patient"
    tuned_by: ClassVar[str] = "patience"


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    kinds = (Thirds, Odd)
    for kind in kinds:
        strategies.register(kind)
    yield
    for kind in kinds:
        REGISTRY.forget(kind.name)


def test_registered_searchable_strategy_is_searched() -> None:
    tuned, experiments = drive(Machine(), "thirds", HUNDRED, runs_streams=True)
    assert [*dict.fromkeys(experiment.phase for experiment in experiments)] == [
        Phase.MEASURE,
        Phase.SEARCH,
        Phase.RACE,
    ]
    assert tuned.plan.strategy == "thirds"
    sizes = {trial.setting.unit_bytes for trial in tuned.search.trials}
    assert sizes <= set(Thirds().unit_sizes(PROFILE))
    assert uses_warm_start(Thirds())


def test_auto_searches_a_registered_strategy() -> None:
    tuned, _ = drive(Machine(), "auto", Budget(150, 1e6), runs_streams=True)
    raced = {candidate.plan.strategy for candidate in tuned.race.candidates}
    assert {"thirds", "aiacc"} <= raced
    found = [note for note in tuned.notes if note.startswith("best of ") and "settings" in note]
    assert len(found) == 2
    assert tuned.search.describe() in found


def test_missing_members_are_named_before_training() -> None:
    missing = r"'odd' must have streams, exploration, seed, unit_sizes, pack .*SearchableStrategy"
    with pytest.raises(ValueError, match=missing):
        tf_libra.optimize("odd")


def test_unknown_tuner_is_named_before_training() -> None:
    lost = dataclasses.make_dataclass(
        "Lost", [], bases=(Odd,), namespace={"name": "lost", "tuned_by": "luck"}, frozen=True
    )
    strategies.register(lost)
    try:
        with pytest.raises(ValueError, match=r"tuned_by.*'luck'"):
            tf_libra.optimize("lost")
    finally:
        REGISTRY.forget("lost")


def test_tuner_registered_outside_the_package_runs() -> None:
    @tuner.register
    @dataclass(frozen=True)
    class ByPatience:
        """Tuner by the model, without a race."""

        name: ClassVar[str] = "patience"
        accepts: ClassVar[type[Any]] = Strategy

        def uses_warm_start(self, strategy: Strategy) -> bool:
            return False

        def tune(self, task: TuningProblem) -> Tuner:
            return measure_and_plan(task)

    strategies.register(Patient)
    try:
        tuned, _ = drive(Machine(), "patient", HUNDRED)
        assert tuned.race is None and tuned.plan.strategy == "patient"
        assert not uses_warm_start(Patient())
    finally:
        REGISTRY.forget("patient")
        tuner.REGISTRY.forget("patience")


def test_incomplete_tuner_is_rejected() -> None:
    nothing = dataclasses.make_dataclass("Nothing", [], namespace={"name": "nothing"}, frozen=True)
    with pytest.raises(ValueError, match="must have accepts, uses_warm_start, tune"):
        tuner.register(nothing)


@pytest.mark.parametrize("name", ["libra", "aiacc", "auto", "mg-wfbp", "wfbp", "libra-m"])
def test_warm_start_is_requested_only_by_tuners_that_use_it(name: str) -> None:
    requested: list[float | None] = []
    drive(Machine(), name, find_warm_start=requested.append)
    assert bool(requested) is uses_warm_start(strategies.resolve(name))
