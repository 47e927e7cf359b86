"""Checks that a plan can be used in this job, for these gradients."""

from collections.abc import Sequence

from tf_libra.autotune import TensorSpec
from tf_libra.backends.backend import Backend
from tf_libra.specs.dtypes import item_bytes
from tf_libra.specs.plan import Plan


def check_plan_can_run(plan: Plan, num_workers: int, backend: Backend) -> None:
    """Raises `ValueError` if the plan is for other workers, or more than the backend can do now."""
    if plan.num_workers != num_workers:
        raise ValueError(
            f"plan: num_workers is {plan.num_workers}, but this job has {num_workers} workers"
        )
    backend.check_running(plan)


def check_plan_fits(plan: Plan, tensors: Sequence[TensorSpec]) -> None:
    """Raises `ValueError` if the plan is of another model."""
    sizes = {tensor.name: tensor.num_bytes for tensor in tensors}
    dtypes = {tensor.name: tensor.dtype for tensor in tensors}
    planned = dict(zip(plan.tensor_names, plan.num_bytes, strict=True))
    for name, num_bytes in planned.items():
        if name not in sizes:
            raise ValueError(
                f"plan: tensor_names has {name!r}, of which this step computes no gradient; the"
                " plan is of another model"
            )
        if sizes[name] != num_bytes:
            raise ValueError(
                f"plan: num_bytes of {name!r} is {num_bytes}, but its gradient has {sizes[name]}"
            )
    for name, dtype in zip(plan.tensor_names, plan.dtypes or (), strict=False):
        if dtype != dtypes[name]:
            raise ValueError(
                f"plan: dtypes has {dtype!r} for {name!r}, but its gradient is {dtypes[name]}"
            )
    for index, group in enumerate(plan.groups):
        item = item_bytes(dtypes[plan.tensor_names[group.stop - 1]])
        if group.stop_byte is not None and item is not None and group.stop_byte % item:
            name = plan.tensor_names[group.stop - 1]
            raise ValueError(
                f"plan: groups[{index}].stop_byte must be a multiple of {item}, an element of"
                f" {name!r}, which is {dtypes[name]}; it is {group.stop_byte}"
            )
    for name in sizes:
        if name not in planned:
            raise ValueError(f"plan: tensor_names lacks {name!r}; the plan is of another model")
