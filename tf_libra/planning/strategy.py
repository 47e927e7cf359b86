"""What plans data-parallel training: the protocol of a strategy, and who is known by which name."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, Self

from tf_libra import checks
from tf_libra.cost_model import CostModel
from tf_libra.model.profile import BackwardProfile
from tf_libra.planning.draft import Draft
from tf_libra.registry import Registry


class Strategy(Protocol):
    """A frozen dataclass that holds the arguments of a planner, and plans by them.

    Attributes:
      name: what users, plans and tables call it.
      chooses_threads: whether it chooses among several thread counts, by the contention model.
      tuned_by: the way in which a plan is found in training, by its name in `tf_libra.tuning.ways`:
        by the fitted "model", by a "search" in real steps, by "all" that others find.
      tuning_steps: that may go by before a plan is in force, where the user says nothing.
      tuning_seconds: likewise, whichever comes first.
    """

    name: ClassVar[str]
    chooses_threads: ClassVar[bool]
    tuned_by: ClassVar[str]
    tuning_steps: ClassVar[int]
    tuning_seconds: ClassVar[float]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def allowed_threads(self) -> tuple[int, ...]:
        """The thread counts that its plans may use, ascending: R, or its one fixed count."""
        ...

    @property
    def num_streams(self) -> int:
        """How many all-reduces its plans run at once, at most."""
        ...

    @property
    def num_lanes(self) -> int:
        """The most threads that its plans have at once, over all all-reduces."""
        ...

    @property
    def contention(self) -> float | None:
        """Gamma to plan with, as the user says; None: nobody has, or it needs none."""
        ...

    @property
    def races(self) -> bool:
        """Whether training compares its plan with other planners' in real steps."""
        ...

    def with_threads(self, threads: tuple[int, ...]) -> Self:
        """The same strategy with other allowed thread counts.

        Raises:
          ValueError: there are several, and it does not choose.
        """
        ...

    def draft(self, profile: BackwardProfile, cost: CostModel) -> Draft:
        """Which gradients are fused, by how many threads; the prediction is added elsewhere."""
        ...


def known_arguments(kind: type[Strategy], given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `given` that are arguments of a strategy."""
    fields = {field.name for field in dataclasses.fields(kind)}
    return {name: value for name, value in given.items() if name in fields}


def check_threads(field: str, num_threads: int) -> int:
    """Returns a number of communication threads as an int of at least 1, else `ValueError`."""
    return checks.integer(field, num_threads, minimum=1, maximum=checks.MAX_INT32)


def check_allowed_threads(field: str, threads: Any) -> tuple[int, ...]:
    """Returns numbers of communication threads as a sorted set, else `ValueError`."""
    allowed = {check_threads(field, r) for r in checks.sequence(field, threads)}
    if not allowed:
        raise ValueError(f"{field} must hold at least one number of communication threads, got ()")
    return tuple(sorted(allowed))


class Usual:
    """What most strategies have in common: one all-reduce at a time, and a plan by the model."""

    tuned_by: ClassVar[str] = "model"
    tuning_steps: ClassVar[int] = 60
    tuning_seconds: ClassVar[float] = 30.0

    @property
    def num_streams(self) -> int:
        """One all-reduce at a time."""
        return 1

    @property
    def num_lanes(self: Strategy) -> int:
        """As many on every stream as it may choose."""
        return self.num_streams * max(self.allowed_threads)

    @property
    def contention(self) -> float | None:
        """Of no effect on one stream."""
        return None

    @property
    def races(self) -> bool:
        """Its plan is taken as it is."""
        return False


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedThreads(Usual):
    """What strategies have in common whose all-reduces all have the same threads.

    Attributes:
      num_threads: communication threads r of every all-reduce.
    """

    name: ClassVar[str]
    chooses_threads: ClassVar[bool] = False
    num_threads: int = 1

    def __post_init__(self) -> None:
        threads = check_threads("num_threads", self.num_threads)
        object.__setattr__(self, "num_threads", threads)

    @property
    def allowed_threads(self) -> tuple[int, ...]:
        """The one count."""
        return (self.num_threads,)

    def with_threads(self, threads: tuple[int, ...]) -> Self:
        """The same strategy with another count; `ValueError` for several."""
        if len(threads) != 1:
            raise ValueError(
                f"threads must be one number for {self.name}, which does not choose among"
                f" several, got {threads}"
            )
        return dataclasses.replace(self, num_threads=threads[0])


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChosenThreads(Usual):
    """What strategies have in common that choose threads for each all-reduce.

    Attributes:
      threads: R, the allowed numbers of communication threads, kept sorted.
    """

    chooses_threads: ClassVar[bool] = True
    threads: tuple[int, ...] = (1, 2, 4)

    def __post_init__(self) -> None:
        object.__setattr__(self, "threads", check_allowed_threads("threads", self.threads))

    @property
    def allowed_threads(self) -> tuple[int, ...]:
        """R."""
        return self.threads

    def with_threads(self, threads: tuple[int, ...]) -> Self:
        """The same strategy with another R."""
        return dataclasses.replace(self, threads=threads)


REGISTRY: Registry[Strategy] = Registry(
    "tf_libra.strategies", protocol=Strategy, usual=(FixedThreads, ChosenThreads)
)
BY_NAME = REGISTRY.by_name
register = REGISTRY.register
resolve = REGISTRY.resolve
