"""ASC-WFBP: each tensor normal, merged or simultaneous, at a fixed number of threads.

Two rules are known. The paper derives Eq. 40 with two misprints. Eq. 27, Q3, counts from tau_c(l)
where Eqs. 17 and 29 count from tau_b(l); as printed it contradicts Q2, because an all-reduce
takes at least its startup overhead. Eq. 32, and the second line of Eq. 31, have tau_b(l) + t_b(l),
when this tensor is produced, for that of l - 1, the next. With the latter, merging is not always
better where the next tensor must be waited for (Q4). The authors' public code only merges what
need not wait.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

from tf_libra.cost_model import CostModel
from tf_libra.internal import formatting, validation
from tf_libra.internal.values import AtLeastOne, one_of
from tf_libra.planning.arguments import argument
from tf_libra.planning.data_parallel.mg_wfbp import MIN_ELEMENTS, merge_stops
from tf_libra.planning.strategy import Draft, FixedThreads, groups_from_stops, register
from tf_libra.simulation import simulate
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan, TensorGroup

RULES = ("published-code", "equation-40")
# Default gamma without a measurement: the middle of the paper's range.
DEFAULT_CONTENTION = 1.5
_Streams = Annotated[int, partial(validation.integer, minimum=2, maximum=validation.MAX_INT32)]
_TIE = 1e-9  # relative: a plan is better only by more


@dataclass(frozen=True)
class _AllReduce:
    """Previous all-reduce: start, end, and seconds without contention."""

    starts: float = 0.0
    ends: float = 0.0
    alone: float = 0.0
    transmission: float = 0.0

    def transmission_left(self, seconds: float) -> float:
        """Seconds b·m of the message m of Eq. 12, left when the next all-reduce arrives."""
        if self.alone == 0:
            return 0.0
        return self.transmission * max(0.0, 1 - (seconds - self.starts) / self.alone)


def plan_asc_wfbp(profile: BackwardProfile, cost: CostModel, strategy: "AscWfbp") -> Draft:
    """Set each tensor's type, in the order of production (the paper's layers L to 1).

    All-reduces take a + q(c, r), the paper's a + b·m; overlap does not slow computation. A plan
    holds the types as streams: a group on another stream than its predecessor does not wait for it.
    If two concurrent all-reduces would leave computation no resources, no tensor is simultaneous,
    and a note says so.

    The rule of the published code ignores gamma. If gamma is known and the model predicts that
    sequential all-reduces, merged as by MG-WFBP, are faster, a note says so. If more than two
    streams are allowed, the model chooses their number.
    """
    threads = strategy.num_threads

    def by_rule(streams: int) -> tuple[TensorGroup, ...]:
        rule = _by_published_code if strategy.rule == "published-code" else _by_equation_40
        return rule(profile, cost, strategy, streams)

    def seconds(groups: tuple[TensorGroup, ...]) -> float:
        plan = Plan.for_profile(
            profile, groups, cost.num_workers, strategy.name, contention=strategy.gamma
        )
        return simulate(profile, plan, cost).step_seconds

    if not _leaves_room(cost, 2 * threads):
        note = (
            f"no tensor is simultaneous: two concurrent all-reduces of {threads} threads would "
            "leave backward computation no resources under this cost model"
        )
        return Draft(by_rule(1), (note,), strategy.gamma)
    groups = by_rule(2)
    if strategy.max_streams is None and strategy.contention is None:
        return Draft(groups, (), strategy.gamma)
    stops = merge_stops(profile, cost, threads, MIN_ELEMENTS)
    in_turn = groups_from_stops(stops, [threads] * len(stops))
    least, alone = seconds(groups), seconds(in_turn)
    if strategy.max_streams is None:
        if alone >= least * (1 - _TIE):
            return Draft(groups, (), strategy.gamma)
        note = (
            "one all-reduce at a time, merged as by mg-wfbp, is predicted"
            f" {formatting.time(alone)},"
            f" this plan {formatting.time(least)}, with a contention of {strategy.gamma:.3g}"
        )
        return Draft(groups, (note,), strategy.gamma)
    streams = 2
    while streams < strategy.max_streams and _leaves_room(cost, (streams + 1) * threads):
        more = by_rule(streams + 1)
        predicted = seconds(more)
        if predicted >= least * (1 - _TIE):
            break
        groups, least, streams = more, predicted, streams + 1
    if alone < least * (1 - _TIE):
        groups, streams = in_turn, 1
    note = (
        f"of at most {strategy.max_streams} concurrent all-reduces, {streams} is predicted the"
        f" fastest, with a contention of {strategy.gamma:.3g}"
    )
    return Draft(groups, (note,), strategy.gamma)


def _by_published_code(
    profile: BackwardProfile, cost: CostModel, strategy: "AscWfbp", streams: int
) -> tuple[TensorGroup, ...]:
    """Plan by the rule of the authors' published code.

    A tensor is merged into the next one if that is produced before the merged all-reduce could
    start in a sequential schedule; no all-reduce waits for a tensor. All other tensors are
    all-reduced when they are produced, concurrently with an unfinished predecessor.
    """
    threads = strategy.num_threads
    produced = profile.compute_seconds.cumsum().tolist()
    groups: list[TensorGroup] = []
    ends, stream, group_start = 0.0, 0, 0
    for index, ready in enumerate(produced):
        stop = index + 1
        starts = max(ready, ends)
        if stop < len(produced) and produced[stop] < starts:
            continue  # merged
        if groups and ends > ready:
            stream = (stream + 1) % streams
        size = int(profile.effective_before[stop] - profile.effective_before[group_start])
        groups.append(TensorGroup(group_start, stop, threads, stream))
        group_start = stop
        ends = starts + float(cost.exclusive_all_reduce(size, threads))
    return tuple(groups)


def _by_equation_40(
    profile: BackwardProfile, cost: CostModel, strategy: "AscWfbp", streams: int
) -> tuple[TensorGroup, ...]:
    """Plan by Theorem 1 as printed.

    A tensor is normal if its all-reduce ends before the next tensor is produced (Q1, Eq. 21); else
    merged into the next one if that is produced within a startup overhead of the all-reduce's start
    (Q2, Eq. 24); else simultaneous. Q3 never decides. The last tensor is simultaneous.

    A normal all-reduce waits for its predecessor (Definition 1), a simultaneous one does not
    (Definition 3) and takes the penalty of Eq. 13, never below 0.
    """
    threads = strategy.num_threads
    startup = cost.exclusive_constant_seconds
    produced = profile.compute_seconds.cumsum().tolist()
    groups: list[TensorGroup] = []
    before = _AllReduce()
    stream = 0
    group_start = 0
    for index, ready in enumerate(produced):
        stop = index + 1
        size = int(profile.effective_before[stop] - profile.effective_before[group_start])
        alone = float(cost.exclusive_all_reduce(size, threads))
        starts = max(ready, before.ends)
        last = stop == len(produced)
        if not last:
            q1 = starts + alone <= produced[stop]
            q2 = produced[stop] < starts + startup
            if q2 and not q1:
                continue  # merged
        simultaneous = bool(groups) and streams > 1 and (last or not q1)
        duration = alone
        if simultaneous:
            stream = (stream + 1) % streams
            starts = ready
            duration += (strategy.gamma - 1) * before.transmission_left(ready)
        transmission = float(cost.exclusive_seconds(size, threads))
        before = _AllReduce(starts, starts + duration, alone, transmission)
        groups.append(TensorGroup(group_start, stop, threads, stream))
        group_start = stop
    return tuple(groups)


def _leaves_room(cost: CostModel, num_threads: int) -> bool:
    """Returns True if computation keeps a positive rate with this number of threads."""
    try:
        return float(cost.compute_rate(num_threads)) > 0
    except ValueError:
        return False


@register
@dataclass(frozen=True, kw_only=True)
class AscWfbp(FixedThreads):
    """ASC-WFBP: each tensor normal, merged, or all-reduced simultaneously with the one before."""

    name: ClassVar[str] = "asc-wfbp"
    contention: AtLeastOne | None = argument(
        None,
        "gamma >= 1, the slowdown of transmission while two all-reduces run concurrently (the "
        "paper measured 1 < gamma <= 2). None: as measured in training, else 1.5.",
    )
    rule: Annotated[str, one_of(RULES)] = argument(
        RULES[0],
        '"published-code", the rule of the authors\' public code, or "equation-40", Theorem 1 '
        "as printed.",
    )
    max_streams: _Streams | None = argument(
        None,
        "most concurrent all-reduces, at least 2; the model chooses their number, or "
        "sequential all-reduces merged as by MG-WFBP. None: 2, by the rule alone.",
    )

    @property
    def num_streams(self) -> int:
        """Most concurrent all-reduces: 2, or `max_streams`."""
        return self.max_streams or 2

    @property
    def gamma(self) -> float:
        """Contention for planning."""
        return DEFAULT_CONTENTION if self.contention is None else self.contention

    def draft(self, profile: BackwardProfile, cost: CostModel) -> Draft:
        """Plan by the rule."""
        return plan_asc_wfbp(profile, cost, self)
