"""Lanes backend: lanes execute `LibraAllReduce`, and a tree of connections carries control."""

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
    """Control transport over the tree of connections that ranks set up with the lanes."""

    name: ClassVar[str] = "lanes"

    def running(self) -> engine_lib.Engine | None:
        """Returns the engine of this process, or None."""
        return engine_lib.running()

    def offer(self, world: World, terms: control_plane.ControlConfig) -> dict[str, Any]:
        """Starts to listen, and returns the data that peers need to connect."""
        return lanes_bootstrap.offer(world, terms.num_lanes)

    def start(
        self, world: World, terms: control_plane.ControlConfig, offers: Sequence[Any]
    ) -> engine_lib.Engine:
        """Connects the lanes of all ranks."""
        return lanes_bootstrap.connect(world, terms, offers)


@backend.register
@dataclass(frozen=True)
class Lanes:
    """Backend on lanes: each thread of an all-reduce has its own connections."""

    name: ClassVar[str] = "lanes"
    op: ClassVar[str] = "LibraAllReduce"
    control: ClassVar[str] = LanesControl.name
    max_threads: ClassVar[int] = MAX_LANES
    leaves_records: ClassVar[bool] = True
    runs_streams: ClassVar[bool] = True
    rounds_tensors: ClassVar[bool] = True
    shards_updates: ClassVar[bool] = True
    plans_rows: ClassVar[bool] = True
    # A direct reduce-scatter and a direct all-gather (ops/lanes/direct_all_reduce.h).
    hops: ClassVar[int | None] = 2

    def check_plan(self, plan: Plan) -> None:
        """Rejects plans that need more than `MAX_LANES` lanes."""
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
        """Returns one lane per thread."""
        return threads

    def get_ready(self, world: World, threads: int) -> None:
        """Connects more lanes if the engine has fewer than `threads`."""
        engine = _running()
        if threads > engine.num_lanes:
            lanes_bootstrap.grow(world, engine, threads)

    def workers_per_host(self) -> int | None:
        """Returns the ranks per host, or per row of the square grid (ops/lanes/grid.h)."""
        return _running().ranks_per_host or None

    def default_threads(self, strategy: Strategy) -> Strategy:
        """Returns the strategy unchanged, with its own thread counts."""
        return strategy

    def applicable(self, strategy: Strategy) -> Strategy:
        """Returns the strategy unchanged: lanes support every thread count."""
        return strategy

    def agreed(self) -> Mapping[str, Any]:
        """Returns no items in addition to those that every backend needs."""
        return {}

    def begin_step(self) -> None:
        """Does nothing: each op holds its position in the plan."""

    def apply(self, plan: Plan) -> None:
        """Does nothing: the thread count is an attribute of each op."""

    def executed(self) -> tuple[AllReduceRecord, ...]:
        """Returns the telemetry of the lanes."""
        return engine_lib.drain_telemetry()

    def records(self, step: backend.TracedStep) -> tuple[AllReduceRecord, ...]:
        """Returns no records: `executed` returns all of them."""
        return ()

    def warnings(self, plan: Plan) -> tuple[str, ...]:
        """Returns no warnings: lanes execute every plan exactly."""
        return ()

    def describe(self) -> str:
        """Returns an empty text: every page of the documentation is about lanes."""
        return ""


def _running() -> engine_lib.Engine:
    engine = engine_lib.running()
    if engine is None:
        raise engine_lib.EngineError("no engine is running in this process")
    return engine
