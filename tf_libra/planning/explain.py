"""Explanation of a plan: the cost of every small change to each group."""

import textwrap
from dataclasses import dataclass, replace

from tf_libra.cost_model import CostModel, Evidence
from tf_libra.internal import formatting, validation
from tf_libra.internal.formatting import COLUMNS, difference, percent, size, time
from tf_libra.planning.plan_changes import SAME_SECONDS, PlanChange, PlanChanges
from tf_libra.simulation import GroupSpan, Timeline, simulate
from tf_libra.simulation.api import owned_problem
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.effective_bytes import effective_group_bytes
from tf_libra.specs.plan import Plan, TensorGroup


@dataclass(frozen=True)
class Alternative:
    """One change to a plan.

    Attributes:
        change: description of the change.
        seconds: change of the step's time (of backward's, if the profile has no updates); negative:
            shorter. None if the cost model does not allow the change.
    """

    change: str
    seconds: float | None


@dataclass(frozen=True)
class GroupExplanation:
    """Explanation of one group.

    Attributes:
        index: index of the group in the plan.
        group: tensors and threads of the group.
        tensors: names of its first and last tensor.
        num_bytes: size of the group.
        span: predicted times of its all-reduce.
        starts: reason for its start, a sentence.
        merged: reason for its last tensor, a sentence.
        threads: reason for its number of threads, a sentence.
        alternatives: half and twice the threads, merging with a neighbour, the best cut.
    """

    index: int
    group: TensorGroup
    tensors: tuple[str, str]
    num_bytes: int
    span: GroupSpan
    starts: str
    merged: str
    threads: str
    alternatives: tuple[Alternative, ...]


@dataclass(frozen=True)
class Explanation:
    """Explanation of a plan.

    Attributes:
        plan: the plan.
        timeline: its simulated timeline.
        summary: breakdown of backward's time, a sentence.
        one_group: reason for a single group, a sentence; None for several groups.
        groups: one explanation per group.
    """

    plan: Plan
    timeline: Timeline
    summary: str
    one_group: str | None
    groups: tuple[GroupExplanation, ...]

    def __str__(self) -> str:
        """Format the explanation as text of at most 100 columns."""
        paragraphs = [self.summary, *([self.one_group] if self.one_group else [])]
        paragraphs += [f"Note: {note}." for note in (self.plan.loss, *self.plan.notes) if note]
        lines = [line for text in paragraphs for line in textwrap.wrap(text, COLUMNS)]
        for entry in self.groups:
            first, last = map(_shortened, entry.tensors)
            group = entry.group
            names = first if group.stop - group.start == 1 else f"{first} .. {last}"
            lines += ["", f"group {entry.index}: {names}"[:COLUMNS]]
            lines.append(
                f"  tensors {group.start}-{group.stop - 1}, "
                f"{size(entry.num_bytes)}, r = {group.num_threads}, "
                f"{time(entry.span.start_seconds)} to {time(entry.span.end_seconds)}"
            )
            if group.cuts_tensors:
                lines.append(f"  {_cut_at(group)}")
            for text in (entry.starts, entry.merged, entry.threads):
                lines += textwrap.wrap(text, COLUMNS, initial_indent="  ", subsequent_indent="    ")
            lines += [
                f"    {difference(alternative.seconds):>12}  {alternative.change}"[:COLUMNS]
                for alternative in entry.alternatives
            ]
        return "\n".join([*lines, *self._gather_lines()])

    def _gather_lines(self) -> list[str]:
        plan, timeline = self.plan, self.timeline
        lines = []
        for index, gather in enumerate(plan.gathers):
            span, layers = timeline.gathers[index], timeline.forward[index]
            names = plan.tensor_names
            first, last = _shortened(names[gather.stop - 1]), _shortened(names[gather.start])
            lines += [
                "",
                f"gather {index}: {first if first == last else f'{first} .. {last}'}"[:COLUMNS],
                f"  tensors {gather.stop - 1}-{gather.start}, {size(plan.gather_bytes[index])},"
                f" r = {gather.num_threads}, {time(span.start_seconds)} to"
                f" {time(span.end_seconds)}",
                f"  Its layers compute from {time(layers.start_seconds)} to"
                f" {time(layers.end_seconds)}.",
            ]
        return lines


@dataclass(frozen=True)
class GroupCost:
    """Cost of one group.

    Attributes:
      slowed_seconds: delay of the computation that overlaps its all-reduce.
      residual_seconds: seconds of its all-reduce without overlapping computation.
    """

    slowed_seconds: float
    residual_seconds: float

    @property
    def seconds(self) -> float:
        """Sum of both costs."""
        return self.slowed_seconds + self.residual_seconds


def group_costs(
    profile: BackwardProfile, plan: Plan, timeline: Timeline, cost: CostModel
) -> tuple[GroupCost, ...]:
    """Returns the predicted cost of each group."""
    if plan.gathers:
        cost = cost.one_phase()
    return tuple(
        GroupCost(
            stage.overlap_seconds
            * (1 - float(cost.mean_compute_rate(num_bytes, group.num_threads))),
            stage.residual_communication_seconds,
        )
        for num_bytes, group, stage in zip(
            effective_group_bytes(profile, plan), plan.groups, timeline.stages[1:], strict=True
        )
    )


def bottleneck(costs: tuple[GroupCost, ...]) -> int:
    """Returns the index of the group with the largest cost, the first of equals."""
    return max(range(len(costs)), key=lambda index: costs[index].seconds)


def explain(
    profile: BackwardProfile, plan: Plan, cost: CostModel, evidence: Evidence | None = None
) -> Explanation:
    """Explain a plan under a cost model.

    Every alternative makes one change and keeps the rest of the plan; its time is that of the whole
    timeline. With evidence, sentences on numbers of threads outside of its range are marked as
    extrapolated.

    Raises:
        ValueError: the plan has other tensors, or a rate is not positive at a group's threads.
    """
    timeline = simulate(profile, plan, cost)
    explainer = _Explainer(profile, plan, cost, timeline, evidence)
    explainer.simulate_changes()
    groups = tuple(explainer.group(index) for index in range(len(plan.groups)))
    return Explanation(
        plan=plan,
        timeline=timeline,
        summary=explainer.summary(),
        one_group=explainer.one_group() if len(groups) == 1 else None,
        groups=groups,
    )


def explain_group(
    profile: BackwardProfile,
    plan: Plan,
    cost: CostModel,
    index: int,
    evidence: Evidence | None = None,
) -> GroupExplanation:
    """Explain one group: `explain(...).groups[index]` without the other groups.

    Raises:
        ValueError: as for `explain`, or the index is out of range.
    """
    validation.integer("index", index, 0, len(plan.groups) - 1)
    return _Explainer(profile, plan, cost, simulate(profile, plan, cost), evidence).group(index)


def explain_summary(profile: BackwardProfile, plan: Plan, cost: CostModel) -> str:
    """Returns the breakdown of backward's time: `explain(...).summary` without the groups.

    Raises:
        ValueError: as for `explain`.
    """
    return _Explainer(profile, plan, cost, simulate(profile, plan, cost)).summary()


class _Explainer:
    """Simulation of changes to one plan."""

    def __init__(
        self,
        profile: BackwardProfile,
        plan: Plan,
        cost: CostModel,
        timeline: Timeline,
        evidence: Evidence | None = None,
    ) -> None:
        # From here on, costs are of the bytes that travel, and those of reduce-scatters.
        cost = cost.on_wire(plan.wire_share, profile.bytes_per_effective)
        self._operation = "reduce-scatter" if plan.gathers else "all-reduce"
        self._num_gathers, self._delay = len(plan.gathers), timeline.forward_delay_seconds
        if plan.gathers:
            profile, cost = owned_problem(profile, cost)
            timeline = replace(timeline, forward_delay_seconds=0.0)
        self._profile, self._cost = profile, cost
        self._plan = plan = replace(plan, wire_dtype=None, gathers=())
        self._bytes = effective_group_bytes(profile, plan)
        self._timeline = timeline
        self._evidence = evidence or Evidence()
        self._changes = PlanChanges(profile, plan, cost, timeline)

    def simulate_changes(self) -> None:
        """Simulate the changes of all groups, vectorized if possible."""
        indices = range(len(self._plan.groups))
        self._changes.simulate(c for index in indices for c in self._changes.for_group(index))

    def summary(self) -> str:
        total = self._timeline.backward_seconds
        computation = float(self._profile.compute_after[0])
        residual = sum(s.residual_communication_seconds for s in self._timeline.stages)
        slowed = max(0.0, total - computation - residual)
        count = len(self._plan.groups)
        words = (
            f"{self._plan.strategy}: {formatting.count(count, 'group')} of "
            f"{len(self._plan.tensor_names)} tensors, {self._cost.num_workers} workers. Backward "
            f"takes {time(total)}: {time(computation)} of computation, {time(slowed)} lost to "
            f"contention and {time(residual)} of exposed communication."
        )
        costs = group_costs(self._profile, self._plan, self._timeline, self._cost)
        worst = bottleneck(costs)
        if count > 1 and costs[worst].seconds > 0:
            words += (
                f" Most is lost by group {worst}: {time(costs[worst].slowed_seconds)} to"
                f" contention, {time(costs[worst].residual_seconds)} alone."
            )
        if self._profile.has_updates:
            updates = float(self._profile.updates_before[-1])
            words += (
                f" With {time(updates)} of updates, during and after the last all-reduces, the step"
                f" ends at {time(self._timeline.step_seconds)}."
            )
        if self._num_gathers:
            words += (
                f" Weights are gathered in {self._num_gathers} groups under the next forward pass,"
                f" which takes {time(self._delay)} longer for it."
            )
        return words

    def one_group(self) -> str:
        [group] = self._plan.groups
        cut = self._changes.best_cut(0)
        alone = float(self._cost.exclusive_all_reduce(self._bytes[0], group.num_threads))
        if cut is None:
            return "There is one tensor, hence one group."
        after, seconds = cut
        if seconds < 0:
            return (
                f"One group is not the best under this cost model: a second one from tensor "
                f"{after} on would save {time(-seconds)}."
            )
        return (
            f"One group, sent after backward, takes {time(alone)}. The best cut in two, at tensor "
            f"{after}, would cost {time(seconds)} more: what it overlaps does not pay for another "
            f"startup overhead and waiting ({time(self._cost.constant_seconds)}), and the slower"
            " computation."
        )

    def group(self, index: int) -> GroupExplanation:
        group = self._plan.groups[index]
        before = self._changes.merges(index - 1) if index else []
        self._changes.simulate([*self._changes.for_group(index), *before])
        cut = self._changes.best_cut(index)
        halved = self._with_threads(index, group.num_threads // 2)
        doubled = self._with_threads(index, 2 * group.num_threads)
        merges = [
            self._merged(first, second)
            for first, second in ((index - 1, index), (index, index + 1))
            if first >= 0 and second < len(self._plan.groups)
        ]
        alternatives = [a for a in (halved, doubled) if a is not None] + merges
        if cut is not None:
            alternatives.append(Alternative(f"cut at tensor {cut[0]}", cut[1]))
        names = self._plan.tensor_names
        return GroupExplanation(
            index=index,
            group=group,
            tensors=(names[group.start], names[group.stop - 1]),
            num_bytes=self._plan.group_bytes[index],
            span=self._timeline.groups[index],
            starts=self._why_then(index),
            merged=self._why_merged(index, cut, merges),
            threads=self._why_threads(index, halved, doubled),
            alternatives=tuple(alternatives),
        )

    def _why_then(self, index: int) -> str:
        span = self._timeline.groups[index]
        waited = span.start_seconds - span.ready_seconds
        if waited > SAME_SECONDS * self._timeline.backward_seconds:
            return (
                f"It is complete at {time(span.ready_seconds)} and waits {time(waited)} for "
                f"the {self._operation} before it."
            )
        return "It starts as soon as its last gradient is produced."

    def _why_merged(
        self, index: int, cut: tuple[int, float] | None, merges: list[Alternative]
    ) -> str:
        group = self._plan.groups[index]
        words = []
        if cut is None:
            what = "a part of one tensor" if group.cuts_tensors else "a single tensor"
            words.append(f"It is {what}")
        elif cut[1] >= 0:
            words.append(
                f"Its {group.stop - group.start} tensors are merged, as the best cut (at tensor "
                f"{cut[0]}) would cost {time(cut[1])}"
            )
        else:
            words.append(
                f"A cut at tensor {cut[0]} would save {time(-cut[1])}, at the price of one group "
                "more"
            )
        costs = [merge.seconds for merge in merges if merge.seconds is not None]
        if costs and min(costs) >= 0:
            words.append(f"merging it with a neighbour would cost {time(min(costs))} or more")
        elif costs:
            words.append(f"merging it with a neighbour would save {time(-min(costs))}")
        return "; ".join(words) + "."

    def _why_threads(
        self, index: int, halved: Alternative | None, doubled: Alternative | None
    ) -> str:
        r, num_bytes, cost = self._plan.groups[index].num_threads, self._bytes[index], self._cost
        overlaps = self._timeline.stages[index + 1].overlap_seconds > 0
        all_reduce = cost.overlapped_all_reduce if overlaps else cost.exclusive_all_reduce
        seconds = time(float(all_reduce(num_bytes, r)))
        is_sparse = num_bytes < self._plan.group_bytes[index]
        counted = f" of {size(num_bytes)} without zero blocks" if is_sparse else ""
        words = [f"r = {r}{self._mark(r)}: the {self._operation}{counted} takes {seconds}"]
        for alternative, other in ((halved, r // 2), (doubled, 2 * r)):
            if alternative is None or alternative.seconds is None:
                continue
            effect = f"{time(float(all_reduce(num_bytes, other)))} with {other}{self._mark(other)}"
            words.append(f"{effect} ({difference(alternative.seconds)} in all)")
        text = ", ".join(words)
        if overlaps:
            speed = percent(float(cost.mean_compute_rate(num_bytes, r)))
            return f"{text}; concurrent computation keeps {speed} of its speed."
        return f"{text}; no computation is left for it to slow down."

    def _with_threads(self, index: int, num_threads: int) -> Alternative | None:
        if num_threads < 1:
            return None
        change = f"r = {num_threads}{self._mark(num_threads)}"
        return Alternative(change, self._changes.seconds(PlanChange("threads", index, num_threads)))

    def _mark(self, num_threads: int) -> str:
        return ", extrapolated" if self._evidence.beyond({num_threads}) else ""

    def _merged(self, first: int, second: int) -> Alternative:
        """Returns the merge of two groups, with the better of their numbers of threads."""
        differences = map(self._changes.seconds, self._changes.merges(first))
        possible = [difference for difference in differences if difference is not None]
        return Alternative(f"groups {first} and {second} merged", min(possible, default=None))


def _cut_at(group: TensorGroup) -> str:
    """Describe the bytes of its tensors at which a group begins and ends."""
    ends = [f"from byte {group.start_byte} of the first"] if group.start_byte else []
    ends += [] if group.stop_byte is None else [f"up to byte {group.stop_byte} of the last"]
    return ", ".join(ends)


def _shortened(name: str) -> str:
    return name if len(name) <= 40 else f"...{name[-37:]}"
