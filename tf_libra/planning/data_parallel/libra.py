"""LIBRA: tensor fusion and communication threads chosen together (section IV-B, Algorithm 1)."""

from dataclasses import dataclass
from typing import ClassVar

from tf_libra.cost_model import CostModel
from tf_libra.internal.values import Count
from tf_libra.planning.arguments import argument
from tf_libra.planning.data_parallel.chunked_costs import ChunkedCosts, NumChunks
from tf_libra.planning.data_parallel.dynamic_program import solve
from tf_libra.planning.data_parallel.libra_exact import plan_libra_exact
from tf_libra.planning.data_parallel.step_refinement import Choice, even_groups, least_step
from tf_libra.planning.strategy import ChosenThreads, Draft, groups_from_stops, register
from tf_libra.specs.backward_profile import BackwardProfile


def plan_libra(profile: BackwardProfile, cost: CostModel, strategy: "Libra") -> Draft:
    """Returns the groups and threads of Eq. 23, at most K groups."""
    costs = ChunkedCosts(profile, cost, strategy.threads, strategy.chunks)
    _, stops, threads = solve(profile, costs, min(strategy.max_groups, len(profile.tensors)))
    return Draft(groups_from_stops(stops, threads))


def shorten_step(
    profile: BackwardProfile, cost: CostModel, strategy: "Libra", draft: Draft
) -> Draft:
    """Returns a draft whose step, with updates, is no longer; see `step_refinement.least_step`.

    The search begins with the draft, with Eq. 23's plans of fewer groups, and with even groups.
    """
    costs = ChunkedCosts(profile, cost, strategy.threads, strategy.chunks)
    K = min(strategy.max_groups, len(profile.tensors))
    starts: list[Choice] = [
        (tuple(g.stop for g in draft.groups), tuple(g.num_threads for g in draft.groups))
    ]
    for fewer in sorted({1, 2, K // 2} & set(range(1, K))):
        _, stops, threads = solve(profile, costs, fewer)
        starts.append((tuple(stops), tuple(threads)))
    starts += [even_groups(profile, K, r) for r in strategy.threads]
    found = least_step(profile, cost, starts, strategy.threads, K)
    if found == starts[0]:
        return draft
    note = "the step, updates included, is shorter than with the groups of the least backward"
    return Draft(groups_from_stops(*found), (*draft.notes, note))


@register
@dataclass(frozen=True, kw_only=True)
class Libra(ChosenThreads):
    """LIBRA: tensor fusion and communication threads chosen together."""

    name: ClassVar[str] = "libra"
    max_groups: Count = argument(10, "K, the largest number of tensor groups.")
    chunks: NumChunks = argument(
        150,
        "Z, number of chunks of backward computation; `exact` begins with their plan.",
    )
    exact: bool = argument(False, "find the optimum in continuous time, without chunks.")
    race: bool = argument(
        True,
        "in training, run interleaved trials of its plan and others, and activate the fastest.",
        in_training=True,
    )

    @property
    def races(self) -> bool:
        """The user's choice."""
        return self.race

    def draft(self, profile: BackwardProfile, cost: CostModel) -> Draft:
        """Plan by the dynamic program, or exactly; then shorten the step if updates take time."""
        if self.exact:
            draft = plan_libra_exact(profile, cost, self.threads, self.max_groups, self.chunks)
        else:
            draft = plan_libra(profile, cost, self)
        return shorten_step(profile, cost, self, draft) if profile.has_updates else draft
