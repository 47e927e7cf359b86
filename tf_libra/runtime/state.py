"""Tuning state of one set of gradients, which decides what its next step does."""

from dataclasses import dataclass

from tf_libra.autotune import Phase, PlanSource, TuningResult


@dataclass(frozen=True)
class TuningState:
    """A point in the life of one set of gradients, the same on every rank.

    Attributes:
        phase: where in its life it is.
        conclusion: the active result; None before there is one.
        origin: how that result came to be; None before.
    """

    phase: Phase = Phase.TRACE
    conclusion: TuningResult | None = None
    origin: PlanSource | None = None

    @property
    def is_tuning(self) -> bool:
        """Returns whether every step begins with a directive, because plans are tried out."""
        return self.phase in (Phase.MEASURE, Phase.SAMPLE, Phase.SEARCH, Phase.RACE)

    @property
    def is_running(self) -> bool:
        """Returns whether trials have ended: a plan is active, or nothing can be planned."""
        return self.phase is Phase.RUN
