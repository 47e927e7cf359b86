"""Data parallelism: every layer on the same devices."""

from tf_libra.model.scaling import ScalingProfile
from tf_libra.planning.burst.blocks import Block, Chain, Edge, Link, reduce_graph
from tf_libra.planning.burst.decisions import BlockRun, ChainRun, EdgeRun, Run
from tf_libra.planning.burst.registry import Request, register
from tf_libra.planning.burst.schedule import make_schedule


@register("data-parallel")
def plan_data_parallel(
    scaling: ScalingProfile, request: Request
) -> tuple[ChainRun, tuple[str, ...]]:
    """Returns the quickest of the plans that give every layer the same number of devices.

    Under a limit, the quickest that keeps it; if none does, the one whose largest amplification is
    least, with a note. `num_devices` fixes the number, whatever the limit.
    """
    if request.num_devices is not None:
        return everywhere(scaling, scaling.index(request.num_devices)), ()
    runs = [everywhere(scaling, position) for position in range(len(scaling.device_counts))]
    plans = [make_schedule(scaling, run, "data-parallel", None) for run in runs]
    limit = request.max_amplification
    allowed = [
        index
        for index, plan in enumerate(plans)
        if limit is None or max(plan.amplification) <= limit
    ]
    if allowed:
        return runs[min(allowed, key=lambda index: plans[index].iteration_seconds)], ()
    least = min(
        range(len(plans)),
        key=lambda index: (max(plans[index].amplification), plans[index].iteration_seconds),
    )
    return runs[least], (
        f"no number of devices keeps every layer's amplification within {limit:g}",
    )


def everywhere(scaling: ScalingProfile, position: int) -> ChainRun:
    """Returns the decision for one number of devices everywhere: `device_counts[position]`."""
    first, last, link = reduce_graph(scaling.num_layers, scaling.edges, scaling.names)
    if link is None:
        return ChainRun((first,), (position,), (None, None))
    chain = link if isinstance(link, Chain) else Chain((), (link,))
    layers = (first, *chain.layers, last)
    runs = (_same(inner, position, scaling.device_counts) for inner in chain.links)
    return ChainRun(layers, (position,) * len(layers), (None, *runs, None))


def _same(link: Link, position: int, counts: tuple[int, ...]) -> Run:
    if isinstance(link, Edge):
        return EdgeRun(link.index)
    if isinstance(link, Chain):
        runs = tuple(_same(inner, position, counts) for inner in link.links)
        return ChainRun(link.layers, (position,) * len(link.layers), runs)
    assert isinstance(link, Block)
    main = tuple(_same(branch, position, counts) for branch in link.branches)
    return BlockRun(main, (), (counts[-1],))  # type: ignore[arg-type]
