"""Groups that stay all-reduces under a plan with gathers, since every rank makes their updates.

The graph pass shards the updates of a group if it can shard those of all its tensors
(`passes/update_sharding.h`). The others send whole gradients, and no weight of theirs is gathered.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tf_libra.cost_model import CostModel
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan


@dataclass(frozen=True, eq=False)
class WholeGroups:
    """The groups of one plan that are all-reduced.

    Attributes:
      cost: cost of all-reduces.
      groups: whether each group is all-reduced, shape [groups].
      tensors: whether each tensor is in such a group, shape [L].
    """

    cost: CostModel
    groups: NDArray[np.bool_]
    tensors: NDArray[np.bool_]

    @classmethod
    def of_plan(cls, plan: Plan, cost: CostModel, names: Collection[str]) -> "WholeGroups":
        """Returns the groups of a plan that hold one of these tensors.

        Args:
          plan: the plan.
          cost: cost of all-reduces.
          names: tensors whose updates every rank makes.
        """
        groups = np.zeros(len(plan.groups), dtype=bool)
        tensors = np.zeros(len(plan.tensor_names), dtype=bool)
        for index, group in enumerate(plan.groups):
            members = slice(group.start, group.stop)
            if any(name in names for name in plan.tensor_names[members]):
                groups[index] = tensors[members] = True
        return cls(cost, groups, tensors)

    def owned_updates(self, profile: BackwardProfile) -> BackwardProfile:
        """Returns the profile of ranks that update the parts that they own, of other tensors."""
        owned = profile.with_owned_updates(self.cost.num_workers)
        if not self.tensors.any():
            return owned
        pairs = zip(self.tensors, profile.tensors, owned.tensors, strict=True)
        return replace(
            profile, tensors=tuple(whole if is_whole else part for is_whole, whole, part in pairs)
        )

    def gathered_bytes(self, plan: Plan) -> NDArray[np.int64]:
        """Returns the bytes of weights in each gather, shape [gathers]."""
        owned = np.where(self.tensors, 0, np.array(plan.num_bytes))
        return np.array([int(owned[g.start : g.stop].sum()) for g in plan.gathers])
