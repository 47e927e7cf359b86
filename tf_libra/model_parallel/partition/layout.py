"""Assignment of layers to ranks, and their order: the executable form of any plan."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from tf_libra.specs.burst import BurstPlan
from tf_libra.specs.pipeline import PipelinePlan


class StageTask(NamedTuple):
    """A unit of computation of a rank.

    Attributes:
        kind: "forward" or "backward".
        stage: index of the stage.
        microbatch: index of the microbatch.
    """

    kind: str
    stage: int
    microbatch: int


@dataclass(frozen=True)
class Layout:
    """Stages, which are consecutive layers, on ranks that share each microbatch.

    A rank may have several stages, or none. All ranks come to the tasks that they share in the same
    order.

    Attributes:
        starts: by stage, its first layer; ascending from 0.
        ranks: by stage, its replicas.
        num_ranks: of the job.
        num_microbatches: M.
        orders: by rank, what it computes.
        groups: by stage, gradients that are all-reduced together, from within the last backward
            computation; empty for a stage that all-reduces all gradients together, after it. By
            default that is every stage.
    """

    starts: tuple[int, ...]
    ranks: tuple[tuple[int, ...], ...]
    num_ranks: int
    num_microbatches: int
    orders: tuple[tuple[StageTask, ...], ...]
    groups: tuple[tuple[tuple[str, ...], ...], ...] = ()

    @classmethod
    def of_pipeline(cls, plan: PipelinePlan) -> "Layout":
        """Each rank has one stage, in the plan's order."""
        orders: list[tuple[StageTask, ...]] = [()] * plan.num_devices
        for number, stage in enumerate(plan.stages):
            for rank in stage.devices:
                orders[rank] = tuple(StageTask(kind, number, m) for kind, m in stage.order)
        return cls(
            tuple(one.start for one in plan.stages),
            tuple(one.devices for one in plan.stages),
            plan.num_devices,
            plan.num_microbatches,
            tuple(orders),
        )

    @classmethod
    def of_burst(cls, plan: BurstPlan, num_ranks: int) -> "Layout":
        """Layers that follow each other on the same ranks are a stage; there is one microbatch."""
        return cls.at_once(
            [
                tuple(range(first, first + count))
                for first, count in zip(plan.first_devices, plan.num_devices, strict=True)
            ],
            num_ranks,
        )

    @classmethod
    def at_once(cls, ranks: Iterable[tuple[int, ...]], num_ranks: int) -> "Layout":
        """Returns the layout for one microbatch: forward through all layers, then backward.

        Args:
            ranks: those of each layer; consecutive layers with the same ones are a stage.
            num_ranks: of the job.
        """
        starts, stages, start = [], [], 0
        for members, layers in itertools.groupby(ranks):
            starts.append(start)
            stages.append(members)
            start += len(list(layers))
        return cls._at_once(tuple(starts), tuple(stages), num_ranks)

    @classmethod
    def apart(cls, num_layers: int, ranks: tuple[int, ...], num_ranks: int) -> "Layout":
        """Every layer is a stage, all on the same ranks."""
        return cls._at_once(tuple(range(num_layers)), (ranks,) * num_layers, num_ranks)

    @classmethod
    def _at_once(
        cls, starts: tuple[int, ...], stages: tuple[tuple[int, ...], ...], num_ranks: int
    ) -> "Layout":
        forward = [StageTask("forward", number, 0) for number in range(len(stages))]
        backward = [StageTask("backward", number, 0) for number in reversed(range(len(stages)))]
        orders = tuple(
            tuple(task for task in (*forward, *backward) if rank in stages[task.stage])
            for rank in range(num_ranks)
        )
        return cls(starts, stages, num_ranks, 1, orders)

    def for_batch(self, samples_per_rank: int) -> "Layout":
        """Returns this layout for another number of samples, as in the last batch of an epoch.

        It uses the largest number of microbatches, at most the present one, that divides the joint
        batch so that the replicas can divide each microbatch. If not even one microbatch can be
        divided, every layer is on all ranks.
        """
        num_samples = samples_per_rank * self.num_ranks
        for count in range(self.num_microbatches, 0, -1):
            if num_samples % count == 0 and not any(
                num_samples // count % len(team) for team in self.teams
            ):
                return self if count == self.num_microbatches else self._shortened(count)
        return Layout._at_once((0,), (tuple(range(self.num_ranks)),), self.num_ranks)

    def _shortened(self, num_microbatches: int) -> "Layout":
        """Without the last microbatches, and else in the same order."""
        orders = tuple(
            tuple(task for task in order if task.microbatch < num_microbatches)
            for order in self.orders
        )
        return replace(self, num_microbatches=num_microbatches, orders=orders)

    def forward(self) -> "Layout":
        """The same of an evaluation, which computes nothing backward."""
        orders = tuple(
            tuple(task for task in order if task.kind == "forward") for order in self.orders
        )
        return replace(self, orders=orders, groups=())

    @property
    def num_stages(self) -> int:
        """The number of stages."""
        return len(self.starts)

    def groups_of(self, stage: int) -> tuple[tuple[str, ...], ...]:
        """Returns the groups in which a stage's gradients are fused; none: all of them together."""
        return self.groups[stage] if self.groups else ()

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """The stages that a rank has a replica of."""
        return tuple(stage for stage, ranks in enumerate(self.ranks) if rank in ranks)

    @cached_property
    def teams(self) -> tuple[tuple[int, ...], ...]:
        """The different sets of ranks that stages have, in the order of their first stages."""
        return tuple(dict.fromkeys(self.ranks))
