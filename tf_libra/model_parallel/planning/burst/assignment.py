"""Decisions of a burst planner: device counts per layer and parallel branches."""

from dataclasses import dataclass


@dataclass(frozen=True)
class EdgeRun:
    """One edge; index -1 carries no layer's output."""

    index: int


@dataclass(frozen=True)
class ChainRun:
    """Layers one after the other, as in `graph_reduction.Chain`.

    Attributes:
      layers: at least one.
      counts: positions of their device counts in `device_counts`.
      links: one more than layers; the first and the last connect to the outside, None for the
        whole model.
    """

    layers: tuple[int, ...]
    counts: tuple[int, ...]
    links: tuple["Run | None", ...]


@dataclass(frozen=True)
class BlockRun:
    """Branches between the same two layers.

    Attributes:
      main: branches that run one after the other on the devices around the block.
      parallel: branches that run in parallel, each on its own devices.
      allotments: device counts of `main` and of each parallel branch.
    """

    main: tuple["EdgeRun | ChainRun", ...]
    parallel: tuple[ChainRun, ...]
    allotments: tuple[int, ...]


Run = EdgeRun | ChainRun | BlockRun
