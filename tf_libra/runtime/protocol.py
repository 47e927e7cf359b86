"""Interface of a decorated step, the same under every strategy, and its tuning state."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from tf_libra.autotune import Phase, PlanSource, TuningResult
from tf_libra.reporting.records.record_types import Record
from tf_libra.specs.layer_graph import LayerGraph

if TYPE_CHECKING:  # TensorFlow, which commands that plan do without
    import tensorflow as tf

    from tf_libra.variable_sync.bound_variables import BoundVariable


class TrialError(ValueError):
    """Error of a step that is tried, which every rank raises: training goes on with another one."""


@dataclass(frozen=True)
class TuningState:
    """Tuning state of one set of gradients, the same on every rank.

    Attributes:
        phase: phase of tuning; determines what the next step does.
        conclusion: the active result; None before there is one.
        origin: source of that result; None before.
    """

    phase: Phase = Phase.TRACE
    conclusion: TuningResult | None = None
    origin: PlanSource | None = None

    @property
    def is_tuning(self) -> bool:
        """Returns whether trials run, so that every step begins with a directive."""
        return self.phase in (Phase.MEASURE, Phase.SAMPLE, Phase.SEARCH, Phase.RACE)

    @property
    def is_running(self) -> bool:
        """Returns whether trials have ended: a plan is active, or nothing can be planned."""
        return self.phase is Phase.RUN


class TrainingStep(Protocol):
    """A training function on one rank, in all jobs of this process.

    Attributes:
        is_method: whether the first argument of a step is the object whose method it is.
        error_feedback: state of error feedback, for checkpoints; None if there is none.
    """

    is_method: bool
    error_feedback: Any

    @property
    def runs_several(self) -> bool:
        """Returns whether it runs graphs of several steps, as data parallelism does."""
        ...

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
            ValueError: an option or argument is invalid, or the ranks disagree; names it.
            HorovodInternalError: a rank is gone, late, or gave up; the step was not completed.
            EngineError, tf.errors.OpError: the same call would fail again.
        """
        ...

    def explain(self) -> str:
        """Returns the facts known so far, as text of at most 100 columns."""
        ...

    def record(self, make_record: Callable[[str, int], Record]) -> None:
        """Writes a record, made from the function's name and the rank, to the log directory."""
        ...

    def check_variables(self) -> None:
        """Raises `ValueError` on every rank if variables differ between ranks; all call it."""
        ...

    def synchronize_variables(self) -> None:
        """Synchronizes the step's variables on every rank; all call it."""
        ...

    def close(self) -> None:
        """Reports the summary, and stops recording."""
        ...


@dataclass(frozen=True)
class AcceptedDifferences:
    """Variables and results of a step that differ for a reason that the user allows.

    Attributes:
        variables: keys of the variables.
        results: numbers of the results.
    """

    variables: frozenset[int] = frozenset()
    results: frozenset[int] = frozenset()


NOTHING_ACCEPTED = AcceptedDifferences()


class CandidateStep(TrainingStep, Protocol):
    """A step under a strategy that is compared with data parallelism.

    Attributes:
        computation: digest of the step that `rejects` has accepted, the same in every job.
        accepted: what may differ although `rejects` has accepted the step.
        exceeds_memory: whether `rejects` has rejected the step for lack of memory alone.
        use_of_rows: name of an op that uses rows of sparse gradients otherwise than their sum;
            empty if there is none, None before `rejects` has traced the step with rows.
        least_precise_dtype: the least precise floating-point dtype of the step.
        is_tried: whether a failure on any rank, before a step or in the first under a layout, is a
            `TrialError` on every rank, so that the caller goes on with another strategy.
        is_undoable: whether this also holds for a failure in any other step. It costs a copy of the
            variables and a message per step.
        undo_seconds: seconds of these in the last step.
        step_number: number of the last step, which messages name.
    """

    computation: str
    accepted: AcceptedDifferences
    exceeds_memory: bool
    use_of_rows: str | None
    least_precise_dtype: "tf.DType"
    is_tried: bool
    is_undoable: bool
    undo_seconds: float
    step_number: int

    @property
    def predicted_seconds(self) -> float | None:
        """Predicted step under the plan; None before there is one, or if nothing predicts it."""
        ...

    @property
    def link_share(self) -> float:
        """Share of the predicted step in which ranks wait for links; 0 if unknown."""
        ...

    def plan_again(self, with_layers: bool) -> None:
        """Plans a later step again, with links that are measured before it; all ranks call it.

        Args:
            with_layers: whether layers are measured again, too. There is no plan until they are.
        """
        ...

    @property
    def bound_variables(self) -> dict[int, "BoundVariable"]:
        """The variables, by key, that a step may use, once `rejects` has returned None."""
        ...

    def share_traces(self, other: "CandidateStep") -> None:
        """Uses the traces that another step of the function makes, and adds its own to them."""
        ...

    def rejects(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        num_ranks: int,
        allow: Sequence[str] = (),
    ) -> str | None:
        """Returns why the step would not compute what data parallelism computes; None if it would.

        It reaches no other rank.

        Args:
            args: of the step.
            kwargs: of the step.
            num_ranks: number of ranks of the job.
            allow: differences that the user allows, by name.
        """
        ...

    def measure_layers(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        num_ranks: int,
        repeats: int,
        is_joint: bool,
    ) -> tuple[LayerGraph, int]:
        """Returns measured costs of the layers for the joint batch, and its number of examples.

        If one rank's share of the batch can be computed, layers have costs for it, too.
        It reaches no other rank, and leaves variables as they are.

        Args:
            args: of the step.
            kwargs: of the step.
            num_ranks: number of ranks of the job.
            repeats: how often each layer runs.
            is_joint: False to run one rank's share at most, and to scale its costs to the joint
                batch, which need not fit into memory then.

        Raises:
            ValueError: the step cannot be cut into layers.
        """
        ...
