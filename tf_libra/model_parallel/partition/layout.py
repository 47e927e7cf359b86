"""Assignment of layers to ranks, and their order: the executable form of a plan."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from tf_libra.specs.burst import BurstPlan
from tf_libra.specs.pipeline import PipelinePlan


class StageTask(NamedTuple):
    """Unit of computation of a rank.

    Attributes:
        kind: "forward" or "backward"; "step" for the whole step, with its update.
        stage: index of the stage.
        microbatch: index of the microbatch.
    """

    kind: str
    stage: int
    microbatch: int


@dataclass(frozen=True)
class Layout:
    """Stages, which are consecutive layers, and their replicas, which share each microbatch.

    A rank may have several stages, or none. Ranks execute the tasks that they share in the same
    order.

    Attributes:
        starts: by stage, its first layer; ascending from 0.
        ranks: by stage, the ranks of its replicas.
        num_ranks: number of ranks of the job.
        num_microbatches: M.
        orders: by rank, its tasks in order of execution.
        groups: by stage, groups of gradients, each all-reduced together within the last backward
            computation. A stage with no group all-reduces all gradients together after it. By
            default no stage has groups.
    """

    starts: tuple[int, ...]
    ranks: tuple[tuple[int, ...], ...]
    num_ranks: int
    num_microbatches: int
    orders: tuple[tuple[StageTask, ...], ...]
    groups: tuple[tuple[tuple[str, ...], ...], ...] = ()

    @classmethod
    def from_pipeline_plan(cls, plan: PipelinePlan) -> "Layout":
        """Returns the layout in which each rank has one stage, in the plan's order."""
        orders: list[tuple[StageTask, ...]] = [()] * plan.num_devices
        for index, stage in enumerate(plan.stages):
            for rank in stage.devices:
                orders[rank] = tuple(StageTask(kind, index, m) for kind, m in stage.order)
        return cls(
            tuple(stage.start for stage in plan.stages),
            tuple(stage.devices for stage in plan.stages),
            plan.num_devices,
            plan.num_microbatches,
            tuple(orders),
        )

    @classmethod
    def from_burst_plan(cls, plan: BurstPlan, num_ranks: int) -> "Layout":
        """Returns the layout of a burst plan, with one microbatch; see `for_layers`.

        If one rank has all layers, it runs the step as a whole.
        """
        layout = cls.for_layers(
            [
                tuple(range(first, first + count))
                for first, count in zip(plan.first_devices, plan.num_devices, strict=True)
            ],
            num_ranks,
        )
        if len(layout.ranks) == 1 and len(layout.ranks[0]) == 1:
            return cls.on_one_rank(layout.ranks[0][0], num_ranks)
        return layout

    @classmethod
    def for_layers(cls, ranks: Iterable[tuple[int, ...]], num_ranks: int) -> "Layout":
        """Returns the layout for one microbatch: forward through all layers, then backward.

        Args:
            ranks: by layer, its ranks; consecutive layers with the same ranks are a stage.
            num_ranks: number of ranks of the job.
        """
        starts, stages, start = [], [], 0
        for members, layers in itertools.groupby(ranks):
            starts.append(start)
            stages.append(members)
            start += len(list(layers))
        return cls._for_stages(tuple(starts), tuple(stages), num_ranks)

    @classmethod
    def on_one_rank(cls, rank: int, num_ranks: int) -> "Layout":
        """Returns the layout in which one rank runs the whole step for the joint batch."""
        task = StageTask("step", 0, 0)
        orders = tuple((task,) if other == rank else () for other in range(num_ranks))
        return cls((0,), ((rank,),), num_ranks, 1, orders)

    @classmethod
    def with_stage_per_layer(
        cls, num_layers: int, ranks: tuple[int, ...], num_ranks: int
    ) -> "Layout":
        """Returns the layout in which every layer is a stage on the same ranks."""
        return cls._for_stages(tuple(range(num_layers)), (ranks,) * num_layers, num_ranks)

    @classmethod
    def _for_stages(
        cls, starts: tuple[int, ...], ranks: tuple[tuple[int, ...], ...], num_ranks: int
    ) -> "Layout":
        forward = [StageTask("forward", stage, 0) for stage in range(len(ranks))]
        backward = [StageTask("backward", stage, 0) for stage in reversed(range(len(ranks)))]
        orders = tuple(
            tuple(task for task in (*forward, *backward) if rank in ranks[task.stage])
            for rank in range(num_ranks)
        )
        return cls(starts, ranks, num_ranks, 1, orders)

    def for_batch(self, examples_per_rank: int) -> "Layout":
        """Returns the layout for another batch size, as of the last batch of an epoch.

        It uses the largest number of microbatches, at most the present one, that divides the joint
        batch into microbatches that the replicas divide. If there is none, all layers form one
        stage on all ranks.
        """
        num_examples = examples_per_rank * self.num_ranks
        for count in range(self.num_microbatches, 0, -1):
            if num_examples % count == 0 and not any(
                num_examples // count % len(group) for group in self.replica_groups
            ):
                return self if count == self.num_microbatches else self._with_microbatches(count)
        return Layout._for_stages((0,), (tuple(range(self.num_ranks)),), self.num_ranks)

    def _with_microbatches(self, count: int) -> "Layout":
        """Returns the layout with only the first microbatches, in the same order."""
        orders = tuple(
            tuple(task for task in order if task.microbatch < count) for order in self.orders
        )
        return replace(self, num_microbatches=count, orders=orders)

    def forward_only(self) -> "Layout":
        """Returns the layout of an evaluation, which has no backward computation."""
        orders = tuple(
            tuple(task for task in order if task.kind != "backward") for order in self.orders
        )
        return replace(self, orders=orders, groups=())

    @property
    def is_whole(self) -> bool:
        """Returns whether one rank runs the whole step; see `on_one_rank`."""
        return self.orders[self.ranks[0][0]][0].kind == "step"

    @property
    def num_stages(self) -> int:
        """The number of stages."""
        return len(self.starts)

    def stage_groups(self, stage: int) -> tuple[tuple[str, ...], ...]:
        """Returns the gradient groups of a stage; none if it all-reduces them after the end."""
        return self.groups[stage] if self.groups else ()

    def rank_stages(self, rank: int) -> tuple[int, ...]:
        """Returns the stages of which a rank has a replica."""
        return tuple(stage for stage, ranks in enumerate(self.ranks) if rank in ranks)

    @cached_property
    def replica_groups(self) -> tuple[tuple[int, ...], ...]:
        """The distinct sets of ranks that stages have, in the order of their first stages."""
        return tuple(dict.fromkeys(self.ranks))
