"""What a planner has decided: how many devices per layer, and what runs beside what."""

from dataclasses import dataclass


@dataclass(frozen=True)
class EdgeRun:
    """One edge; -1: of no layers' output."""

    index: int


@dataclass(frozen=True)
class ChainRun:
    """Layers one after the other, as in `blocks.Chain`.

    Attributes:
      layers: at least one.
      counts: positions of their numbers of devices in `device_counts`.
      links: one more than layers; the first and the last lead from and to what is outside. The
        whole model has neither of these two: they are None.
    """

    layers: tuple[int, ...]
    counts: tuple[int, ...]
    links: tuple["Run | None", ...]


@dataclass(frozen=True)
class BlockRun:
    """Branches between the same two layers.

    Attributes:
      main: those that run one after the other on the devices of what is around them.
      beside: those that run meanwhile, each on devices of its own.
      allotments: how many devices `main` has to itself, and each of `beside`.
    """

    main: tuple["EdgeRun | ChainRun", ...]
    beside: tuple[ChainRun, ...]
    allotments: tuple[int, ...]


Run = EdgeRun | ChainRun | BlockRun
