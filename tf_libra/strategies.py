"""What a user may ask for: one frozen dataclass per strategy, each with a name as a string."""

from dataclasses import dataclass
from typing import ClassVar

from tf_libra import checks

_THREADS = (1, 2, 4)


def _check_fixed(strategy: "SynEasgd | Wfbp | HorovodFusion | MgWfbp | AscWfbp") -> None:
    object.__setattr__(strategy, "num_threads", check_threads("num_threads", strategy.num_threads))


def check_threads(field: str, num_threads: int) -> int:
    """Returns a number of communication threads as an int of at least 1, else `ValueError`."""
    return checks.integer(field, num_threads, minimum=1, maximum=checks.MAX_INT32)


def _check_allowed(strategy: "Libra | LibraM") -> None:
    threads = {check_threads("threads", r) for r in checks.sequence("threads", strategy.threads)}
    if not threads:
        raise ValueError("threads must hold at least one number of communication threads, got ()")
    object.__setattr__(strategy, "threads", tuple(sorted(threads)))
    object.__setattr__(strategy, "chunks", checks.integer("chunks", strategy.chunks, minimum=1))


@dataclass(frozen=True, kw_only=True)
class SynEasgd:
    """One all-reduce of everything, after backward computation."""

    name: ClassVar[str] = "syneasgd"
    num_threads: int = 1

    def __post_init__(self) -> None:
        _check_fixed(self)


@dataclass(frozen=True, kw_only=True)
class Wfbp:
    """One all-reduce per tensor, as soon as it is produced, in order."""

    name: ClassVar[str] = "wfbp"
    num_threads: int = 1

    def __post_init__(self) -> None:
        _check_fixed(self)


@dataclass(frozen=True, kw_only=True)
class HorovodFusion:
    """What Horovod does: tensors produced within one cycle are fused, up to the buffer.

    Attributes:
      num_threads: communication threads r of every all-reduce.
      cycle_seconds: HOROVOD_CYCLE_TIME; 1 ms in Horovod 0.28, 5 ms in 0.20.
      buffer_bytes: HOROVOD_FUSION_THRESHOLD; 128 MiB in Horovod 0.28, 64 MiB in 0.20.
    """

    name: ClassVar[str] = "horovod-fusion"
    num_threads: int = 1
    cycle_seconds: float = 1e-3
    buffer_bytes: int = 128 * 2**20

    def __post_init__(self) -> None:
        _check_fixed(self)
        cycle = checks.real("cycle_seconds", self.cycle_seconds, above=0)
        object.__setattr__(self, "cycle_seconds", cycle)
        buffer = checks.integer("buffer_bytes", self.buffer_bytes, minimum=0)
        object.__setattr__(self, "buffer_bytes", buffer)


@dataclass(frozen=True, kw_only=True)
class MgWfbp:
    """MG-WFBP: the next tensor is merged when it is produced within a startup overhead."""

    name: ClassVar[str] = "mg-wfbp"
    num_threads: int = 1

    def __post_init__(self) -> None:
        _check_fixed(self)


@dataclass(frozen=True, kw_only=True)
class AscWfbp:
    """ASC-WFBP: each tensor normal, merged, or all-reduced simultaneously with the one before.

    Attributes:
      num_threads: communication threads r of every all-reduce.
      contention: gamma >= 1, how many times longer a byte takes while two all-reduces run at once
        (the paper measured 1 < gamma <= 2).
    """

    name: ClassVar[str] = "asc-wfbp"
    num_threads: int = 1
    contention: float = 1.5

    def __post_init__(self) -> None:
        _check_fixed(self)
        object.__setattr__(
            self, "contention", checks.real("contention", self.contention, minimum=1)
        )


@dataclass(frozen=True, kw_only=True)
class LibraM:
    """LIBRA-M: the groups of MG-WFBP, with LIBRA's choice of threads for each.

    Attributes:
      threads: R, the allowed numbers of communication threads, kept sorted.
      chunks: Z, the parts that backward computation is divided into.
      num_threads: the fixed r that MG-WFBP merges for; None: the smallest of `threads`.
    """

    name: ClassVar[str] = "libra-m"
    threads: tuple[int, ...] = _THREADS
    chunks: int = 150
    num_threads: int | None = None

    def __post_init__(self) -> None:
        _check_allowed(self)
        if self.num_threads is not None:
            object.__setattr__(self, "num_threads", check_threads("num_threads", self.num_threads))


@dataclass(frozen=True, kw_only=True)
class Libra:
    """LIBRA: tensor fusion and communication threads chosen together.

    Attributes:
      threads: R, the allowed numbers of communication threads, kept sorted.
      max_groups: K, the largest number of tensor groups.
      chunks: Z, the parts that backward computation is divided into; `exact` only begins with
            the plan that they give.
      exact: find the optimum in continuous time instead, without chunks.
    """

    name: ClassVar[str] = "libra"
    threads: tuple[int, ...] = _THREADS
    max_groups: int = 10
    chunks: int = 150
    exact: bool = False

    def __post_init__(self) -> None:
        _check_allowed(self)
        groups = checks.integer("max_groups", self.max_groups, minimum=1)
        object.__setattr__(self, "max_groups", groups)
        checks.boolean("exact", self.exact)


Strategy = SynEasgd | Wfbp | HorovodFusion | MgWfbp | AscWfbp | LibraM | Libra

BY_NAME: dict[str, type[Strategy]] = {
    kind.name: kind for kind in (SynEasgd, Wfbp, HorovodFusion, MgWfbp, AscWfbp, LibraM, Libra)
}


def allowed_threads(strategy: Strategy) -> tuple[int, ...]:
    """Returns the thread counts that a strategy may use, ascending: R, or its one fixed count."""
    if isinstance(strategy, Libra | LibraM):
        return strategy.threads
    return (strategy.num_threads,)


def resolve(strategy: Strategy | str) -> Strategy:
    """Returns the strategy itself, or the one of that name with its default arguments.

    Raises:
      ValueError: no strategy has this name.
    """
    if isinstance(strategy, str):
        if strategy not in BY_NAME:
            raise ValueError(f"strategy must be one of {', '.join(BY_NAME)}, got {strategy!r}")
        return BY_NAME[strategy]()
    if not isinstance(strategy, Strategy):
        raise ValueError(
            f"strategy must be a name or an object of tf_libra.strategies, got {strategy!r}"
        )
    return strategy
