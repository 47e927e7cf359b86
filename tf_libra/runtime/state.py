"""Where one set of gradients is in its life: this decides what its next step does."""

from dataclasses import dataclass

from tf_libra.autotune import Phase, PlanSource, TuningResult


@dataclass(frozen=True)
class TuningState:
    """A point in the life of one set of gradients, the same on every rank.

    Attributes:
        phase: where in its life it is.
        conclusion: what is in force; None before.
        origin: how that came to be; None before.
    """

    phase: Phase = Phase.TRACE
    conclusion: TuningResult | None = None
    origin: PlanSource | None = None

    @property
    def is_tuning(self) -> bool:
        """Whether every step begins with a directive, because things are tried out."""
        return self.phase in (Phase.MEASURE, Phase.SAMPLE, Phase.SEARCH, Phase.RACE)

    @property
    def is_running(self) -> bool:
        """Whether nothing is tried out any more: a plan is in force, or nothing can be planned."""
        return self.phase is Phase.RUN
