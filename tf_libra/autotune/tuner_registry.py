"""Ways in which a plan is found in training, known by what `tuned_by` of strategies says."""

from collections.abc import Generator
from typing import Any, ClassVar, Protocol

from tf_libra.autotune.problem import TuningProblem
from tf_libra.autotune.trial import Trial, TrialResult
from tf_libra.autotune.tuning_result import TuningResult
from tf_libra.internal.registry import Registry, lacking
from tf_libra.planning.strategy import Strategy

Tuner = Generator[Trial, TrialResult | None, TuningResult]


class TunerKind(Protocol):
    """A frozen dataclass that registers itself.

    Attributes:
        name: what strategies are tuned by.
        takes: the protocol of strategies that can be tuned so.
    """

    name: ClassVar[str]
    takes: ClassVar[type[Any]]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def asks_for_a_start(self, strategy: Strategy) -> bool:
        """Returns whether the findings of an earlier, similar job take part in tuning."""
        ...

    def tune(self, task: TuningProblem) -> Tuner:
        """Yields experiments until the budget is spent or all is known; returns a conclusion."""
        ...


REGISTRY: Registry[TunerKind] = Registry("tf_libra.autotune.tuner_registry", "tuned_by", TunerKind)
register = REGISTRY.register


def way_of(strategy: Strategy) -> TunerKind:
    """The way in which a strategy is tuned.

    Raises:
        ValueError: none is known by this name, or the strategy lacks what it takes.
    """
    way = REGISTRY.resolve(strategy.tuned_by)
    missing = lacking(type(strategy), way.takes)
    if missing:
        raise ValueError(
            f"strategy {strategy.name!r} must have {', '.join(missing)} to be tuned by"
            f" {way.name!r}: {way.takes.__module__}.{way.takes.__name__} says what they are"
        )
    return way
