"""What each group's all-reduce costs: computation slowed down beside it, and the wait for it."""

from dataclasses import dataclass

from tf_libra.cost_model import CostModel
from tf_libra.model.plan import Plan
from tf_libra.simulation import Timeline


@dataclass(frozen=True)
class Loss:
    """What one group costs.

    Attributes:
      slowed_seconds: how much longer the computation beside its all-reduce takes.
      residual_seconds: how long its all-reduce runs with nothing to overlap it.
    """

    slowed_seconds: float
    residual_seconds: float

    @property
    def seconds(self) -> float:
        """Both."""
        return self.slowed_seconds + self.residual_seconds


def losses(plan: Plan, timeline: Timeline, cost: CostModel) -> tuple[Loss, ...]:
    """What each group costs, as predicted."""
    return tuple(
        Loss(
            stage.overlap_seconds * (1 - float(cost.compute_rate(group.num_threads))),
            stage.residual_communication_seconds,
        )
        for group, stage in zip(plan.groups, timeline.stages[1:], strict=True)
    )


def bottleneck(found: tuple[Loss, ...]) -> int:
    """The group by which most is lost; the first of equals."""
    return max(range(len(found)), key=lambda index: found[index].seconds)
