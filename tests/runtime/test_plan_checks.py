"""The checks that a plan can be used here."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.backends.alone import alone
from tf_libra.autotune import TensorSpec
from tf_libra.backends import backend
from tf_libra.runtime.plan_checks import check_plan_can_run, check_plan_fits
from tf_libra.specs.plan import Plan, TensorGroup

PLAN = Plan(
    groups=(TensorGroup(0, 1, 3), TensorGroup(1, 3, 1)),
    tensor_names=("b", "w", "v"),
    num_bytes=(8, 40, 4),
    num_workers=2,
    strategy="by hand",
    dtypes=("float64", "float32", "float32"),
)
TENSORS = tuple(
    TensorSpec(name, num_bytes, dtype)
    for name, num_bytes, dtype in zip(PLAN.tensor_names, PLAN.num_bytes, PLAN.dtypes, strict=True)
)
LANES, HOROVOD = (backend.resolve(name) for name in ("lanes", "horovod"))


@pytest.fixture
def two_lanes() -> Iterator[None]:
    engine = alone(num_lanes=2)
    yield
    engine.close()


def test_plan_for_these_workers_and_lanes_can_run(two_lanes: None) -> None:
    narrow = replace(PLAN, groups=(TensorGroup(0, 1, 2), TensorGroup(1, 3, 1)))
    check_plan_can_run(narrow, 2, LANES)
    check_plan_can_run(PLAN, 2, HOROVOD)  # threads are not its lanes


def test_plan_for_others_is_named(two_lanes: None) -> None:
    with pytest.raises(ValueError, match="num_workers is 2, but this job has 3 workers"):
        check_plan_can_run(PLAN, 3, LANES)
    with pytest.raises(ValueError, match="num_threads is 3, but the engine has 2 lanes"):
        check_plan_can_run(PLAN, 2, LANES)


def test_tensors_are_cut_between_elements() -> None:
    groups = (TensorGroup(0, 2, 1, stop_byte=20), TensorGroup(1, 3, 1, start_byte=20))
    plan = replace(PLAN, groups=groups)
    check_plan_fits(plan, TENSORS)
    groups = (TensorGroup(0, 2, 1, stop_byte=18), TensorGroup(1, 3, 1, start_byte=18))
    untold = replace(PLAN, groups=groups, dtypes=None)  # its author does not know the dtypes
    with pytest.raises(ValueError, match=r"groups\[0\].stop_byte must be a multiple of 4.*'w'"):
        check_plan_fits(untold, TENSORS)


def test_order_of_the_tensors_is_the_plans_own() -> None:
    check_plan_fits(PLAN, TENSORS[::-1])
    check_plan_fits(replace(PLAN, dtypes=None), TENSORS)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (TENSORS[1:], "tensor_names has 'b', of which this step computes no gradient"),
        ((*TENSORS, TensorSpec("u", 4, "float32")), "tensor_names lacks 'u'"),
        ((replace(TENSORS[0], num_bytes=16), *TENSORS[1:]), "num_bytes of 'b' is 8, .* has 16"),
        ((replace(TENSORS[0], dtype="int64"), *TENSORS[1:]), "dtypes has 'float64' for 'b'"),
    ],
)
def test_plan_of_another_model_is_named(tensors: tuple[TensorSpec, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_plan_fits(PLAN, tensors)
