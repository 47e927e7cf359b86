"""`auto`: the best of all strategies, by trials in training, by the cost model otherwise."""

from dataclasses import dataclass
from typing import ClassVar

from tf_libra.cost_model import CostModel
from tf_libra.internal.values import Names
from tf_libra.planning.allowed_differences import ALLOWED
from tf_libra.planning.arguments import argument
from tf_libra.planning.data_parallel.api import make_plan
from tf_libra.planning.strategy import (
    BY_NAME,
    ChosenThreads,
    Draft,
    Strategy,
    StreamCounts,
    known_arguments,
    register,
)
from tf_libra.simulation import simulate
from tf_libra.specs.backward_profile import BackwardProfile


@register
@dataclass(frozen=True, kw_only=True)
class Auto(ChosenThreads):
    """The plan of the best strategy.

    Attributes:
      family_steps: default budget of steps if other families take part, those of data parallelism
        included, which has the same share of any other budget.
      family_seconds: the same in seconds.
    """

    name: ClassVar[str] = "auto"
    tuned_by: ClassVar[str] = "all"
    tuning_steps: ClassVar[int] = 80
    tuning_seconds: ClassVar[float] = 40.0
    family_steps: ClassVar[int] = 150
    family_seconds: ClassVar[float] = 60.0
    threads: tuple[int, ...] = argument(
        (1, 2, 4),
        "allowed thread counts; strategies with a fixed count take the smallest.",
    )
    streams: StreamCounts = argument(
        (1, 2, 4),
        "numbers of concurrent all-reduces in the search. Their total of `threads` is at most "
        "that of two streams with the most threads; the smallest count is always in the "
        "search.",
    )
    contention: float | None = argument(None, "gamma; None: as measured in training, else 1.5.")
    families: Names = argument(
        ("one-rank", "spp", "deeppool"),
        'other strategies that may join the trials, of "one-rank", "spp" and "deeppool"; none for'
        " data parallelism alone.",
        in_training=True,
    )
    allow: Names = argument(
        (),
        'differences to data parallelism that other strategies may have: "joint_results" for'
        " results and metrics of the joint batch instead of each rank's own examples,"
        ' "batch_statistics" for statistics of other examples, as of batch normalization,'
        ' "random_draws" for other random numbers, as of dropout, "host_effects" for effects'
        " outside of variables, and calls of Python, on computing ranks alone.",
        in_training=True,
    )

    def _validate(self) -> None:
        unknown = sorted({*self.allow} - {*ALLOWED})
        if unknown:
            raise ValueError(f"allow must be of {', '.join(ALLOWED)}, got {unknown[0]!r}")

    @property
    def num_streams(self) -> int:
        """Most concurrent all-reduces of any strategy."""
        return max(strategy.num_streams for strategy in self.others().values())

    @property
    def races(self) -> bool:
        """True: training runs trials of all strategies."""
        return True

    @property
    def num_lanes(self) -> int:
        """Most concurrent threads of any strategy."""
        return max(strategy.num_lanes for strategy in self.others().values())

    def others(self) -> dict[str, Strategy]:
        """Returns every strategy of all-reduces, by name, with the arguments that it has.

        Trials compare all-reduces, so strategies with gathers take no part.
        """
        arguments = {
            "threads": self.threads,
            "num_threads": self.threads[0],
            "streams": self.streams,
            "contention": self.contention,
        }
        return {
            name: self._with_few_threads(kind(**known_arguments(kind, arguments)))
            for name, kind in BY_NAME.items()
            if kind.tuned_by != self.tuned_by and not kind().gathers_weights
        }

    def _with_few_threads(self, strategy: Strategy) -> Strategy:
        """Limit threads so that the streams use at most two streams of the most threads."""
        most = 2 * max(self.threads) // strategy.num_streams
        allowed = strategy.allowed_threads
        return strategy.with_threads(tuple(r for r in allowed if r <= most) or allowed[:1])

    def draft(self, profile: BackwardProfile, cost: CostModel) -> Draft:
        """Plan by the strategy with the shortest predicted step.

        Raises:
          ValueError: no strategy has a plan under the cost model.
        """
        plans = []
        problem = None
        for strategy in self.others().values():
            try:
                plans.append(make_plan(profile, cost, strategy))
            except ValueError as error:  # a rate that is not positive
                problem = error
        if not plans:
            assert problem is not None
            raise problem
        best = min(plans, key=lambda plan: simulate(profile, plan, cost).step_seconds)
        shortest = "step" if profile.has_updates else "backward"
        note = f"of {len(plans)} strategies, {best.strategy} is predicted the shortest {shortest}"
        return Draft(best.groups, (note, *best.notes), best.contention)
