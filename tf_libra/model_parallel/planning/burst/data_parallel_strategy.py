"""Data parallelism: every layer on the same devices."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tf_libra.model_parallel.planning.burst.graph_reduction import (
    Block,
    Chain,
    Edge,
    Link,
    reduce_graph,
)
from tf_libra.model_parallel.planning.burst.schedule import make_schedule
from tf_libra.model_parallel.planning.burst.strategy import (
    BlockRun,
    BurstDraft,
    ChainRun,
    EdgeRun,
    Limited,
    Run,
    register,
)
from tf_libra.planning.arguments import argument
from tf_libra.planning.tolerance import within
from tf_libra.specs.scaling_profile import ScalingProfile


@register
@dataclass(frozen=True, kw_only=True)
class DataParallel(Limited):
    """The fastest plan with the same number of devices for every layer.

    Under a limit, the fastest plan within it; if there is none, the plan with the least largest
    amplification, with a note.
    """

    name: ClassVar[str] = "data-parallel"
    num_devices: int | None = argument(
        None,
        "fixed device count, regardless of the limit; a note reports a violation.",
    )

    def draft(self, scaling: ScalingProfile) -> BurstDraft:
        """Try every number of devices."""
        limit = math.inf if self.max_amplification is None else self.max_amplification
        if self.num_devices is not None:
            run = everywhere(scaling, scaling.index(self.num_devices))
            largest = max(make_schedule(scaling, run, self.name, None).amplification)
            if within(largest, limit):
                return BurstDraft(run)
            note = (
                f"{self.num_devices} devices for every layer amplify one by {largest:.6g}, over the"
                f" limit, {limit:g}"
            )
            return BurstDraft(run, (note,))
        runs = [everywhere(scaling, position) for position in range(len(scaling.device_counts))]
        plans = [make_schedule(scaling, run, self.name, None) for run in runs]
        allowed = [
            index for index, plan in enumerate(plans) if within(max(plan.amplification), limit)
        ]
        if allowed:
            return BurstDraft(runs[min(allowed, key=lambda i: plans[i].iteration_seconds)])
        least = min(
            range(len(plans)),
            key=lambda index: (max(plans[index].amplification), plans[index].iteration_seconds),
        )
        note = f"no number of devices keeps every layer's amplification within {limit:g}"
        return BurstDraft(runs[least], (note,))


def everywhere(scaling: ScalingProfile, position: int) -> ChainRun:
    """Return the decision with `device_counts[position]` for every layer."""
    return run_with_counts(scaling, (position,) * scaling.num_layers)


def run_with_counts(scaling: ScalingProfile, positions: Sequence[int]) -> ChainRun:
    """Return the sequential decision with `device_counts[positions[layer]]` per layer.

    Raises:
      ValueError: branches form no blocks.
    """
    first, last, link = reduce_graph(scaling.num_layers, scaling.edges, scaling.names)
    # Layers that join several inputs or outputs have no cost, on the same number of devices.
    at = dict(enumerate(positions))
    at[scaling.num_layers] = positions[0]
    at[scaling.num_layers + 1] = positions[-1]
    if link is None:
        return ChainRun((first,), (at[first],), (None, None))
    chain = link if isinstance(link, Chain) else Chain((), (link,))
    layers = (first, *chain.layers, last)
    runs = (_same(inner, at, scaling.device_counts) for inner in chain.links)
    return ChainRun(layers, tuple(at[i] for i in layers), (None, *runs, None))


def _same(link: Link, at: Mapping[int, int], counts: tuple[int, ...]) -> Run:
    if isinstance(link, Edge):
        return EdgeRun(link.index)
    if isinstance(link, Chain):
        runs = tuple(_same(inner, at, counts) for inner in link.links)
        return ChainRun(link.layers, tuple(at[i] for i in link.layers), runs)
    assert isinstance(link, Block)
    main = tuple(_same(branch, at, counts) for branch in link.branches)
    return BlockRun(main, (), (counts[-1],))  # type: ignore[arg-type]
