"""Plans of another job or model."""

from dataclasses import replace
from typing import Any

from failures.common import cases, one_step, other


@cases
def plan_for_another_world_size() -> Any:
    one_step(plan=other(num_workers=3))


@cases
def plan_of_another_model() -> Any:
    given = other(tensor_names=("b2", "w2", "b1", "other", "b0", "w0"))
    one_step(plan=given)


@cases
def plan_of_a_model_of_another_size() -> Any:
    given = other()
    one_step(plan=replace(given, num_bytes=(*given.num_bytes[:3], 4, *given.num_bytes[4:])))


@cases
def plan_of_another_dtype() -> Any:
    """Same sizes in bytes, but of other elements."""
    one_step(plan=other(dtypes=("int32",) * 6))


@cases
def plan_of_fewer_tensors() -> Any:
    given = other()
    one_step(
        plan=replace(
            given,
            groups=given.groups[:2],
            tensor_names=given.tensor_names[:4],
            num_bytes=given.num_bytes[:4],
            dtypes=given.dtypes[:4],
        )
    )
