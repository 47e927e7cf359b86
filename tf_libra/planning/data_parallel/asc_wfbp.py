"""ASC-WFBP: each tensor normal, merged or simultaneous, at a fixed number of threads."""

from dataclasses import dataclass
from typing import ClassVar

from tf_libra import checks
from tf_libra.cost_model import ContentionModel
from tf_libra.model.plan import TensorGroup
from tf_libra.model.profile import BackwardProfile
from tf_libra.planning.draft import Draft
from tf_libra.planning.strategy import FixedThreads, register


@dataclass(frozen=True)
class _AllReduce:
    """The all-reduce before: when it starts and ends, and its seconds without contention."""

    starts: float = 0.0
    ends: float = 0.0
    alone: float = 0.0
    transmission: float = 0.0

    def transmission_left(self, seconds: float) -> float:
        """b·m, for the message m of Eq. 12 that is left when the next all-reduce arrives."""
        if self.alone == 0:
            return 0.0
        return self.transmission * max(0.0, 1 - (seconds - self.starts) / self.alone)


def plan_asc_wfbp(profile: BackwardProfile, cost: ContentionModel, strategy: "AscWfbp") -> Draft:
    """Sets each tensor's type by ASC-WFBP's Theorem 1 (Eq. 40).

    All-reduces take a + q(c, r), the paper's a + b·m; computation takes no longer for being
    overlapped. Tensors are visited in the order of their production (the paper's layers L to 1). A
    tensor is normal where its all-reduce ends before the next tensor is produced (Q1, Eq. 21);
    else merged into the next where that is produced within a startup overhead of the all-reduce's
    start (Q2, Eq. 24); else simultaneous. Q3 (Eq. 27) cannot be true beside Q2, as an all-reduce
    takes at least its startup overhead; so it never decides. The last tensor is simultaneous.

    A normal all-reduce waits for the one before (Definition 1), a simultaneous one does not
    (Definition 3) and takes the penalty of Eq. 13, never below 0.

    A plan holds the types as streams: a group on another stream than the group before it does not
    wait for it. Where two all-reduces at once would leave computation no resources, no tensor is
    simultaneous, and a note says so.
    """
    threads = strategy.num_threads
    alpha1, alpha2 = cost.compute
    two_at_once = alpha1 - alpha2 * 2 * threads > 0
    startup = cost.exclusive_startup_seconds
    produced = profile.compute_seconds.cumsum().tolist()
    groups: list[TensorGroup] = []
    before = _AllReduce()
    stream = 0
    group_start = 0
    for index, ready in enumerate(produced):
        stop = index + 1
        size = int(profile.bytes_before[stop] - profile.bytes_before[group_start])
        alone = float(cost.exclusive_all_reduce(size, threads))
        starts = max(ready, before.ends)
        last = stop == len(produced)
        if not last:
            q1 = starts + alone <= produced[stop]
            q2 = produced[stop] < starts + startup
            if q2 and not q1:
                continue  # merged
        simultaneous = bool(groups) and two_at_once and (last or not q1)
        duration = alone
        if simultaneous:
            stream = 1 - stream
            starts = ready
            duration += (strategy.contention - 1) * before.transmission_left(ready)
        transmission = float(cost.exclusive_seconds(size, threads))
        before = _AllReduce(starts, starts + duration, alone, transmission)
        groups.append(TensorGroup(group_start, stop, threads, stream))
        group_start = stop
    notes: tuple[str, ...] = ()
    if not two_at_once:
        notes = (
            f"no tensor is simultaneous: two all-reduces of {threads} threads at once would leave "
            "backward computation no resources under this cost model",
        )
    return Draft(tuple(groups), notes, strategy.contention)


@register
@dataclass(frozen=True, kw_only=True)
class AscWfbp(FixedThreads):
    """ASC-WFBP: each tensor normal, merged, or all-reduced simultaneously with the one before.

    Attributes:
      contention: gamma >= 1, how many times longer a byte takes while two all-reduces run at once
        (the paper measured 1 < gamma <= 2).
    """

    name: ClassVar[str] = "asc-wfbp"
    contention: float = 1.5

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(
            self, "contention", checks.real("contention", self.contention, minimum=1)
        )

    def draft(self, profile: BackwardProfile, cost: ContentionModel) -> Draft:
        """By Theorem 1."""
        return plan_asc_wfbp(profile, cost, self)
