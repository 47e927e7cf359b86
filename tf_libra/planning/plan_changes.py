"""Small changes to a plan, and their effect on the step's time."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from tf_libra.cost_model import CostModel
from tf_libra.simulation import Timeline, simulate
from tf_libra.simulation.vectorized import vectorized_steps
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan, TensorGroup

_BLOCK = 2**20  # total groups of the plans in one vectorized simulation
SAME_SECONDS = 1e-9  # relative to the plan's time: smaller changes count as none


@dataclass(frozen=True)
class PlanChange:
    """One change to a plan.

    Attributes:
        kind: "threads", "merge" with the next group, or "cut".
        index: index of the group.
        value: new number of threads; for a cut, the tensor that begins the second part.
    """

    kind: Literal["threads", "merge", "cut"]
    index: int
    value: int


class PlanChanges:
    """Simulated changes to one plan."""

    def __init__(
        self, profile: BackwardProfile, plan: Plan, cost: CostModel, timeline: Timeline
    ) -> None:
        self._profile = profile
        self._plan = plan
        self._cost = cost
        self._timeline = timeline
        self._known: dict[PlanChange, float | None] = {}

    def merges(self, first: int) -> list[PlanChange]:
        """Returns the merges of a group with the next one, with the threads of either."""
        both = {group.num_threads for group in self._plan.groups[first : first + 2]}
        return [PlanChange("merge", first, num_threads) for num_threads in sorted(both)]

    def _cuts(self, index: int) -> list[PlanChange]:
        group = self._plan.groups[index]
        return [PlanChange("cut", index, tensor) for tensor in range(group.start + 1, group.stop)]

    def best_cut(self, index: int) -> tuple[int, float] | None:
        """Returns the tensor and the cost of a group's cheapest cut."""
        cuts = self._cuts(index)
        found = [(self.seconds(cut), cut.value) for cut in cuts]
        possible = [(seconds, tensor) for seconds, tensor in found if seconds is not None]
        if not possible:
            return None
        seconds, tensor = min(possible)
        return tensor, seconds

    def for_group(self, index: int) -> list[PlanChange]:
        """Returns the changes of a group, apart from a merge with the previous group."""
        num_threads = self._plan.groups[index].num_threads
        others = [r for r in (num_threads // 2, 2 * num_threads) if r]
        merges = self.merges(index) if index + 1 < len(self._plan.groups) else []
        return [*(PlanChange("threads", index, r) for r in others), *merges, *self._cuts(index)]

    def simulate(self, changes: Iterable[PlanChange]) -> None:
        """Simulate changes, vectorized if possible."""
        plan = self._plan
        if plan.num_streams > 1 or plan.cuts_tensors or plan.after_backward:
            return
        new = [c for c in changes if c not in self._known and self._is_allowed(c)]
        size = max(_BLOCK // len(plan.groups), 1)
        for block in (new[start : start + size] for start in range(0, len(new), size)):
            changed = [self._changed(change) for change in block]
            steps = vectorized_steps(
                self._profile,
                self._cost,
                [[group.stop for group in groups] for groups in changed],
                [[group.num_threads for group in groups] for groups in changed],
            )
            self._known |= zip(block, map(self._longer, steps.tolist()), strict=True)

    def seconds(self, change: PlanChange) -> float | None:
        """Returns the change of the step's time; None if the cost model does not allow it."""
        if change not in self._known:
            groups = tuple(self._changed(change))
            try:
                other = simulate(self._profile, replace(self._plan, groups=groups), self._cost)
            except ValueError:  # a rate that is not positive at these threads
                self._known[change] = None
            else:
                self._known[change] = self._longer(other.step_seconds)
        return self._known[change]

    def _is_allowed(self, change: PlanChange) -> bool:
        """Returns True if the cost model allows a change's threads."""
        if change.kind != "threads":
            return True  # the plan has them
        try:
            for rate in ("compute_rate", "overlapped_rate", "exclusive_rate"):
                getattr(self._cost, rate)(change.value)
        except ValueError:
            return False
        return True

    def _changed(self, change: PlanChange) -> list[TensorGroup]:
        groups, index, value = self._plan.groups, change.index, change.value
        group, after = groups[index], index + 1
        if change.kind == "threads":
            changed = [replace(group, num_threads=value)]
        elif change.kind == "merge":
            stop, stop_byte = groups[after].stop, groups[after].stop_byte
            changed = [replace(group, stop=stop, stop_byte=stop_byte, num_threads=value)]
            after += 1
        else:
            changed = [
                replace(group, stop=value, stop_byte=None),
                replace(group, start=value, start_byte=0),
            ]
        return [*groups[:index], *changed, *groups[after:]]

    def _longer(self, step_seconds: float) -> float:
        now = self._timeline.step_seconds
        longer = step_seconds - now
        return 0.0 if abs(longer) <= SAME_SECONDS * now else longer
