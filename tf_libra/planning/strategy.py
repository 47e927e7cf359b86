"""What plans data-parallel training: the protocol of a strategy, and who is known by which name."""

import dataclasses
import types
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, Self, TypeVar

from tf_libra import checks
from tf_libra.cost_model import ContentionModel
from tf_libra.model.profile import BackwardProfile
from tf_libra.planning.draft import Draft


class Strategy(Protocol):
    """A frozen dataclass that holds the arguments of a planner, and plans by them.

    Attributes:
      name: what users, plans and tables call it.
      chooses_threads: whether it chooses among several thread counts, by the contention model.
    """

    name: ClassVar[str]
    chooses_threads: ClassVar[bool]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def allowed_threads(self) -> tuple[int, ...]:
        """The thread counts that its plans may use, ascending: R, or its one fixed count."""
        ...

    def with_threads(self, threads: tuple[int, ...]) -> Self:
        """The same strategy with other allowed thread counts.

        Raises:
          ValueError: there are several, and it does not choose.
        """
        ...

    def draft(self, profile: BackwardProfile, cost: ContentionModel) -> Draft:
        """Which gradients are fused, by how many threads; the prediction is added elsewhere."""
        ...


_Kind = TypeVar("_Kind", bound=type[Strategy])
_KINDS: dict[str, type[Strategy]] = {}
BY_NAME: Mapping[str, type[Strategy]] = types.MappingProxyType(_KINDS)


def register(kind: _Kind) -> _Kind:
    """A decorator: makes a strategy known by its name, here and in every table of strategies.

    Raises:
      ValueError: it is no frozen dataclass with a name and defaults for all arguments, or another
        strategy has the name.
    """
    name = getattr(kind, "name", None)
    if not isinstance(name, str) or not name:
        raise ValueError(f"strategy: name must be a text that is not empty, got {name!r}")
    if not getattr(getattr(kind, "__dataclass_params__", None), "frozen", False):
        raise ValueError(f"strategy {name!r} must be a frozen dataclass, got {kind!r}")
    if name in _KINDS and _KINDS[name] is not kind:
        raise ValueError(f"strategy: name must be new, got {name!r}, which {_KINDS[name]!r} has")
    kind()
    _KINDS[name] = kind
    return kind


def resolve(strategy: Strategy | str) -> Strategy:
    """Returns the strategy itself, or the one of that name with its default arguments.

    Raises:
      ValueError: no strategy has this name.
    """
    if isinstance(strategy, str):
        if strategy not in BY_NAME:
            raise ValueError(f"strategy must be one of {', '.join(BY_NAME)}, got {strategy!r}")
        return BY_NAME[strategy]()
    if type(strategy) not in BY_NAME.values():
        raise ValueError(
            f"strategy must be a name or an object of tf_libra.strategies, got {strategy!r}"
        )
    return strategy


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedThreads:
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
class ChosenThreads:
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
