"""Protocol and registry of strategies for data-parallel training."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol, Self

from tf_libra.cost_model import CostModel
from tf_libra.internal.registry import ClassRegistry
from tf_libra.internal.values import Int32Count, Value, ascending_counts
from tf_libra.planning.arguments import argument
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import TensorGroup


@dataclass(frozen=True)
class Draft:
    """Groups of a plan, with notes for its reader.

    Attributes:
      groups: contiguous ranges in backward order that cover all tensors.
      notes: sentences for the plan's notes.
      contention: gamma of ASC-WFBP for concurrent groups.
      gathers: groups of gathers, in forward order; none if `groups` are all-reduces.
    """

    groups: tuple[TensorGroup, ...]
    notes: tuple[str, ...] = ()
    contention: float = 1.0
    gathers: tuple[TensorGroup, ...] = ()


def groups_from_stops(stops: Sequence[int], threads: Sequence[int]) -> tuple[TensorGroup, ...]:
    """Returns the groups of one stream that end before these tensors, with these threads."""
    starts = [0, *stops[:-1]]
    return tuple(map(TensorGroup, starts, map(int, stops), map(int, threads)))


class Strategy(Protocol):
    """Planner with its arguments, a frozen dataclass.

    Attributes:
      name: name for users, plans and tables.
      chooses_threads: True if it chooses among several thread counts by the contention model.
      tuned_by: kind of tuner in training, named in `tf_libra.autotune.tuner`: the fitted
        "model", a "search" in real steps, or "all" strategies.
      tuning_steps: default budget of steps before a plan is active.
      tuning_seconds: default budget of seconds; the first exhausted budget ends tuning.
    """

    name: ClassVar[str]
    chooses_threads: ClassVar[bool]
    tuned_by: ClassVar[str]
    tuning_steps: ClassVar[int]
    tuning_seconds: ClassVar[float]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def allowed_threads(self) -> tuple[int, ...]:
        """Thread counts that its plans may use, ascending: R, or one fixed count."""
        ...

    @property
    def num_streams(self) -> int:
        """Most concurrent all-reduces of its plans."""
        ...

    @property
    def num_lanes(self) -> int:
        """Most concurrent communication threads of its plans, over all all-reduces."""
        ...

    @property
    def contention(self) -> float | None:
        """User-provided gamma; None if the user gave none or the strategy needs none."""
        ...

    @property
    def gathers_weights(self) -> bool:
        """True if its plans have gathers, so that training has to shard updates."""
        ...

    @property
    def races(self) -> bool:
        """True if training compares its plan with other planners' in interleaved trials."""
        ...

    def with_threads(self, threads: tuple[int, ...]) -> Self:
        """Returns the strategy with other allowed thread counts.

        Raises:
          ValueError: several counts for a strategy that does not choose.
        """
        ...

    def draft(self, profile: BackwardProfile, cost: CostModel) -> Draft:
        """Plan groups and threads; `make_plan` adds the prediction."""
        ...


def known_arguments(kind: type[Strategy], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entries of `arguments` that are arguments of a strategy."""
    fields = {field.name for field in dataclasses.fields(kind)}
    return {name: value for name, value in arguments.items() if name in fields}


ThreadCounts = Annotated[tuple[int, ...], ascending_counts("number of communication threads")]
StreamCounts = Annotated[tuple[int, ...], ascending_counts("number of streams")]


class StrategyBase(Value):
    """Defaults of most strategies: sequential all-reduces, planned by the cost model."""

    tuned_by: ClassVar[str] = "model"
    tuning_steps: ClassVar[int] = 60
    tuning_seconds: ClassVar[float] = 30.0

    @property
    def num_streams(self) -> int:
        """Most concurrent all-reduces: 1."""
        return 1

    @property
    def num_lanes(self: Strategy) -> int:
        """Most concurrent threads: the largest allowed count on every stream."""
        return self.num_streams * max(self.allowed_threads)

    @property
    def contention(self) -> float | None:
        """Gamma, without effect on one stream."""
        return None

    @property
    def gathers_weights(self) -> bool:
        """False: its plans are of all-reduces."""
        return False

    @property
    def races(self) -> bool:
        """False: training activates the plan without trials of other planners."""
        return False


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedThreads(StrategyBase):
    """Defaults of strategies with one number of threads for all all-reduces."""

    name: ClassVar[str]
    chooses_threads: ClassVar[bool] = False
    num_threads: Int32Count = argument(1, "communication threads r of every all-reduce.")

    @property
    def allowed_threads(self) -> tuple[int, ...]:
        """The fixed count."""
        return (self.num_threads,)

    def with_threads(self, threads: tuple[int, ...]) -> Self:
        """Returns the strategy with another count; several counts are a `ValueError`."""
        if len(threads) != 1:
            raise ValueError(
                f"threads must be one number for {self.name}, which does not choose among"
                f" several, got {threads}"
            )
        return dataclasses.replace(self, num_threads=threads[0])


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChosenThreads(StrategyBase):
    """Defaults of strategies that choose threads for each all-reduce."""

    chooses_threads: ClassVar[bool] = True
    threads: ThreadCounts = argument(
        (1, 2, 4),
        "R, the allowed numbers of communication threads, kept sorted.",
    )

    @property
    def allowed_threads(self) -> tuple[int, ...]:
        """R."""
        return self.threads

    def with_threads(self, threads: tuple[int, ...]) -> Self:
        """Returns the strategy with another R."""
        return dataclasses.replace(self, threads=threads)


REGISTRY: ClassRegistry[Strategy] = ClassRegistry(
    "tf_libra.strategies", protocol=Strategy, bases=(FixedThreads, ChosenThreads)
)
BY_NAME = REGISTRY.by_name
register = REGISTRY.register
resolve = REGISTRY.resolve
