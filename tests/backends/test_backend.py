"""A backend from outside of the package: named by a user, it executes what is planned."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

import tf_libra
from tests.worker_processes import Job
from tf_libra import strategies
from tf_libra.backends import backend
from tf_libra.backends.external_op_backend import ExternalOpBackend
from tf_libra.runtime.plan_activation import NOT_EXECUTED
from tf_libra.specs.plan import Plan, TensorGroup

RANKS = [0, 1]


@pytest.fixture
def toy() -> Iterator[type]:
    """Known while the test runs."""

    @backend.register
    @dataclass(frozen=True)
    class Toy(ExternalOpBackend):
        name: ClassVar[str] = "toy"
        op: ClassVar[str] = "ToyAllReduce"
        max_threads: ClassVar[int] = 5

        def check_plan(self, plan: Plan) -> None:
            if len(plan.groups) > 1:
                raise ValueError(f"plan: a toy takes one group, got {len(plan.groups)}")

    yield Toy
    backend.REGISTRY.forget("toy")


def test_options_know_it_by_its_name(toy: type) -> None:
    found = tf_libra.optimize(strategies.Libra(threads=(1, 5)), engine="toy").keywords["options"]
    assert found.engine == "toy"
    assert found.backend == toy()
    assert found.num_lanes == 5
    with pytest.raises(ValueError, match=r"threads.*'libra'.* 5, got 6"):
        tf_libra.optimize(strategies.Libra(threads=(6,)), engine="toy")
    with pytest.raises(ValueError, match=r"^engine .*toy, got"):
        tf_libra.optimize("libra", engine="toi")


def test_a_plan_that_it_cannot_execute_is_rejected_beforehand(toy: type) -> None:
    groups = (TensorGroup(0, 1, 1), TensorGroup(1, 2, 1))
    plan = Plan(groups, ("a", "b"), (4, 4), num_workers=2, strategy="by hand")
    with pytest.raises(ValueError, match="a toy takes one group, got 2"):
        tf_libra.optimize(plan=plan, engine="toy")


def test_names_are_taken_once(toy: type) -> None:
    with pytest.raises(ValueError, match=r"engine:.*'lanes'"):
        backend.register(type("Other", (toy,), {"name": "lanes"}))


@pytest.mark.parametrize("rank", RANKS)
def test_it_trains_to_the_weights_of_one_process(horovod_engine: Job, rank: int) -> None:
    value = horovod_engine.value("toy", rank)
    assert value["phase"] == "run"
    arrays = horovod_engine.arrays("toy", rank)
    ours = [key for key in arrays if key.startswith("ours/")]
    assert ours
    for key in ours:
        alone = arrays[key.replace("ours/", "alone/")]
        np.testing.assert_allclose(arrays[key], alone, rtol=1e-9, err_msg=key)


def test_it_executes_what_was_planned_for_it(horovod_engine: Job) -> None:
    value = horovod_engine.value("toy")
    plan = Plan.from_json(value["plan"])
    names = [list(plan.tensor_names[group.start : group.stop]) for group in plan.groups]
    assert [group[2] for group in value["reported"]] == names
    assert value["modelled"]
    assert set(value["samples"]) == {1, 3}
    assert "engine: toy executes the plan" in value["explained"]
    log = horovod_engine.log("toy")
    assert f"a toy runs {plan.strategy}" in log
    assert NOT_EXECUTED not in log


@pytest.mark.parametrize("rank", RANKS)
def test_backend_receives_steps_and_plans(horovod_engine: Job, rank: int) -> None:
    reported = horovod_engine.value("reported_toy", rank)
    assert reported["begun"] == 14 + 4
    plans = [Plan.from_json(text) for text in reported["applied"]]
    in_force = Plan.from_json(horovod_engine.value("toy", rank)["plan"])
    assert plans[-1].fingerprint == in_force.fingerprint
    assert {group.num_threads for plan in plans for group in plan.groups} <= {1, 3}
    assert reported["refused"] == "threads of strategy 'libra' must be between 1 and 3, got 4"
