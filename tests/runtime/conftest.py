"""Shared fixtures of the tests of calls under a plan."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks.cluster import Cluster
from tests.forkserver import Nursery
from tests.runtime.alone import LANES
from tests.runtime.death_jobs import FAREWELL, WORLD_SIZE, Die
from tests.runtime.family_stand_ins import OTHER, DataParallelism, Other
from tests.worker_processes import Workers, running_workers
from tf_libra import config
from tf_libra.backends.engine import Engine
from tf_libra.reporting.run_reporter import RunReporter
from tf_libra.runtime import family_trials, trial_sequence
from tf_libra.runtime.family_step import FamilyStep
from tf_libra.runtime.plan_activation import PlanActivator
from tf_libra.runtime.training_step import TrainingFunction
from tf_libra.specs.plan import Plan


@pytest.fixture
def activator(engine: Engine) -> Iterator[PlanActivator]:
    """Under the module's engine; whatever becomes of the test, no plan of it stays registered."""
    activator = PlanActivator(engine, LANES, RunReporter(config.resolve({})))
    yield activator
    activator.release(all_but=None)


@pytest.fixture
def first() -> DataParallelism:
    """Data parallelism that has tuned in a job of two ranks."""
    return DataParallelism()


@pytest.fixture
def tried(first: DataParallelism, monkeypatch: pytest.MonkeyPatch) -> FamilyStep:
    """A step whose trials have no final turns, as stand-ins take about equally long."""
    monkeypatch.setattr(family_trials, "CLOSE", 0.5)
    options = config.resolve({"progress": False})
    return FamilyStep(lambda inputs: None, options, cast(TrainingFunction, first), [OTHER])


@pytest.fixture
def other(tried: FamilyStep) -> Other:
    """A candidate that has passed all checks."""
    candidate: Any = Other()
    tried._candidates.steps[OTHER] = candidate
    tried._candidates._repeated.add(OTHER)
    tried._trials._is_checked = True
    return cast(Other, candidate)


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, float]]:
    """Lets the last strategy win, and returns the medians that are compared."""
    medians: list[dict[str, float]] = []

    def choose(seconds: dict[str, float]) -> str:
        medians.append(seconds)
        return [*seconds][-1]

    monkeypatch.setattr(trial_sequence, "choose_fastest", choose)
    return medians


@pytest.fixture
def die(nursery: Nursery, tmp_path: Path, three_groups: Plan) -> Die:
    """A context in which the job of `jobs/deaths.py` runs, in a cluster if there is one."""

    @contextmanager
    def start(
        how: str,
        cluster: Cluster | None = None,
        plan: Plan = three_groups,
        env: dict[str, str] | None = None,
    ) -> Iterator[Workers]:
        world_size = WORLD_SIZE if cluster is None else len(cluster.hosts)
        plan_file = tmp_path / "plan.json"
        plan_file.write_text(replace(plan, num_workers=world_size).to_json())
        arguments = ("deaths.py", world_size, tmp_path, how, str(plan_file))
        env = FAREWELL | (env or {})
        with running_workers(*arguments, env=env, nursery=nursery, cluster=cluster) as workers:
            yield workers

    return start
