"""Bytes of a plan's groups that count in the time of all-reduces, by the densities of a profile."""

from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan


def effective_group_bytes(profile: BackwardProfile, plan: Plan) -> tuple[int, ...]:
    """Returns the bytes of each group that count in the time of its all-reduce.

    Args:
      profile: tensors with their densities.
      plan: a plan of these tensors, in any order.
    """
    if profile.is_dense:
        return plan.group_bytes
    by_name = {tensor.name: tensor for tensor in profile.tensors}
    tensors = [by_name[name] for name in plan.tensor_names]
    return tuple(
        sum(tensors[part.tensor].effective_size(part.num_bytes) for part in plan.parts(index))
        for index in range(len(plan.groups))
    )
