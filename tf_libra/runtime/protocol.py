"""Interface of a decorated step, the same under every strategy."""

from typing import Any, Protocol

from tf_libra.runtime.state import TuningState
from tf_libra.specs.background_stats import BackgroundStats


class TrainingStep(Protocol):
    """A training function, on one rank of whatever jobs this process takes part in.

    Attributes:
        is_method: whether steps are given first the object that it is a method of.
    """

    is_method: bool

    @property
    def state(self) -> TuningState:
        """Tuning state of the step."""
        ...

    @property
    def plan(self) -> Any:
        """Plan that the step runs under; None before a plan is active."""
        ...

    @property
    def settled(self) -> bool:
        """Returns whether trials and measurements have ended; the same step on every rank."""
        ...

    def step(self, args: tuple[Any, ...], kwargs: dict[str, Any], num_steps: int = 1) -> Any:
        """Runs one training step, or a graph of `num_steps` of them.

        Raises:
            ValueError: something cannot be right, such as ranks that disagree; named.
            HorovodInternalError: a rank is gone, late, or gave up; the step was not completed.
            EngineError, tf.errors.OpError: the same call would fail again.
        """
        ...

    def explain(self) -> str:
        """Returns what is known so far, as text of at most 100 columns."""
        ...

    def background(self, got: BackgroundStats) -> None:
        """Records what a concurrent background job has got so far."""
        ...

    def check_variables(self) -> None:
        """Raises `ValueError` on every rank where ranks have other variables; all call it."""
        ...

    def synchronize_variables(self) -> None:
        """Brings the variables of the step up to date on every rank, all of which call it."""
        ...

    def close(self) -> None:
        """Says how it went, and writes nothing down any more."""
        ...
