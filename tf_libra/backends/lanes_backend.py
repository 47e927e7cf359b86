"""Lanes backend: lanes execute `LibraAllReduce`, and a separate tree carries control."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tf_libra.backends import backend, lanes_bootstrap
from tf_libra.backends import engine as engine_lib
from tf_libra.coordination import control_plane
from tf_libra.coordination.world import World
from tf_libra.planning.strategy import Strategy
from tf_libra.specs.plan import Plan
from tf_libra.specs.telemetry import AllReduceRecord

MAX_LANES = 64


@control_plane.register
@dataclass(frozen=True)
class LanesControl:
    """Control over a tree of connections that ranks set up with the lanes, by way of Horovod."""

    name: ClassVar[str] = "lanes"

    def running(self) -> engine_lib.Engine | None:
        """The engine of this process."""
        return engine_lib.running()

    def offer(self, world: World, terms: control_plane.ControlConfig) -> dict[str, Any]:
        """Listens, and returns the address and what else the peers need to connect."""
        return lanes_bootstrap.offer(world, terms.num_lanes)

    def start(
        self, world: World, terms: control_plane.ControlConfig, offers: Sequence[Any]
    ) -> engine_lib.Engine:
        """Connects the lanes of all ranks."""
        return lanes_bootstrap.connect(world, terms, offers)


@backend.register
@dataclass(frozen=True)
class Lanes:
    """A thread with connections of its own for each thread of an all-reduce."""

    name: ClassVar[str] = "lanes"
    op: ClassVar[str] = "LibraAllReduce"
    control: ClassVar[str] = LanesControl.name
    max_threads: ClassVar[int] = MAX_LANES
    leaves_records: ClassVar[bool] = True
    runs_streams: ClassVar[bool] = True
    # A direct reduce-scatter and a direct all-gather (ops/lanes/direct_all_reduce.h).
    hops: ClassVar[int | None] = 2

    def check_plan(self, plan: Plan) -> None:
        """Lanes have a limit."""
        for index, group in enumerate(plan.groups):
            if group.num_threads > MAX_LANES:
                raise ValueError(
                    f"plan: groups[{index}].num_threads is {group.num_threads}; the engine has at"
                    f" most {MAX_LANES} lanes"
                )
        if plan.num_lanes > MAX_LANES:
            raise ValueError(
                f"plan: its {plan.num_streams} streams need {plan.num_lanes} lanes at once; the"
                f" engine has at most {MAX_LANES}"
            )

    def check_running(self, plan: Plan) -> None:
        """Requires as many lanes as the plan has concurrent threads."""
        engine = _running()
        if plan.num_lanes > engine.num_lanes:
            many = plan.num_streams > 1
            needs = f"its {plan.num_streams} streams need" if many else "num_threads is"
            raise ValueError(
                f"plan: {needs} {plan.num_lanes}, but the engine has {engine.num_lanes} lanes"
            )

    def num_lanes(self, threads: int) -> int:
        """One for each."""
        return threads

    def get_ready(self, world: World, threads: int) -> None:
        """Connects more lanes where there are fewer."""
        engine = _running()
        if threads > engine.num_lanes:
            lanes_bootstrap.grow(world, engine, threads)

    def workers_per_host(self) -> int | None:
        """Two levels where hosts have as many, if one each then in a square (ops/lanes/grid.h)."""
        return _running().ranks_per_host or None

    def default_threads(self, strategy: Strategy) -> Strategy:
        """Returns the strategy unchanged, with its own thread counts."""
        return strategy

    def applicable(self, strategy: Strategy) -> Strategy:
        """All of them."""
        return strategy

    def agreed(self) -> Mapping[str, Any]:
        """Returns no items in addition to those that every backend needs."""
        return {}

    def begin_step(self) -> None:
        """Every op knows its place."""

    def apply(self, plan: Plan) -> None:
        """The op has its number of threads as an attribute."""

    def executed(self) -> tuple[AllReduceRecord, ...]:
        """The lanes' own telemetry."""
        return engine_lib.drain_telemetry()

    def records(self, step: backend.TracedStep) -> tuple[AllReduceRecord, ...]:
        """Returns no records: telemetry has them all."""
        return ()

    def warnings(self, plan: Plan) -> tuple[str, ...]:
        """Lanes do as the plan says."""
        return ()

    def describe(self) -> str:
        """Returns an empty text: every page of the documentation is about lanes."""
        return ""


def _running() -> engine_lib.Engine:
    engine = engine_lib.running()
    if engine is None:
        raise engine_lib.EngineError("no engine is running in this process")
    return engine
