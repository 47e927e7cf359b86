"""Cost of each group's all-reduce: slower computation and exposed communication."""

from dataclasses import dataclass

from tf_libra.cost_model import CostModel
from tf_libra.simulation import Timeline
from tf_libra.specs.plan import Plan


@dataclass(frozen=True)
class GroupCost:
    """Cost of one group.

    Attributes:
      slowed_seconds: delay of the computation that overlaps its all-reduce.
      residual_seconds: seconds of its all-reduce without overlapping computation.
    """

    slowed_seconds: float
    residual_seconds: float

    @property
    def seconds(self) -> float:
        """Sum of both costs."""
        return self.slowed_seconds + self.residual_seconds


def losses(plan: Plan, timeline: Timeline, cost: CostModel) -> tuple[GroupCost, ...]:
    """Return the predicted cost of each group."""
    return tuple(
        GroupCost(
            stage.overlap_seconds * (1 - float(cost.compute_rate(group.num_threads))),
            stage.residual_communication_seconds,
        )
        for group, stage in zip(plan.groups, timeline.stages[1:], strict=True)
    )


def bottleneck(found: tuple[GroupCost, ...]) -> int:
    """Return the index of the group with the largest cost, the first of equals."""
    return max(range(len(found)), key=lambda index: found[index].seconds)
