"""Messages from rank 0 to all ranks before a step: during trials, and at drift checks."""

from dataclasses import dataclass
from typing import Any

from tf_libra.autotune import Phase, PlanSource, Postponed, Trial, TuningResult
from tf_libra.specs.plan import Plan


@dataclass(frozen=True)
class KeepPlan:
    """Decision to run this step under the active plan.

    Attributes:
        then_try: whether trials begin with the next step.
    """

    then_try: bool = False


# A trial to run, a result to activate from this step on, or no change.
Decision = Trial | TuningResult | KeepPlan | Postponed


@dataclass(frozen=True)
class Directive:
    """Decision about the next step, for every rank.

    Attributes:
        function: identity of the training function.
        step: number of the step.
        what: the decision.
        origin: source of the result, if the decision is one.
    """

    function: str
    step: int
    what: Decision
    origin: PlanSource = PlanSource.TUNED

    def to_message(self) -> dict[str, Any]:
        """Returns JSON values."""
        message: dict[str, Any] = {"function": self.function, "step": self.step}
        if isinstance(self.what, TuningResult):
            return message | {
                "conclusion": self.what.to_document(),
                "origin": self.origin.value,
            }
        if isinstance(self.what, KeepPlan):
            return message | {"then_try": self.what.then_try}
        if isinstance(self.what, Postponed):
            return message | {"postponed": True}
        return message | {
            "phase": self.what.phase.value,
            "plan": self.what.plan.to_json(),
            "traced": self.what.traced,
        }

    @classmethod
    def from_message(cls, message: dict[str, Any]) -> "Directive":
        """Reads the JSON values of `to_message`."""
        function, step = message["function"], message["step"]
        if "conclusion" in message:
            conclusion = TuningResult.from_document(message["conclusion"])
            return cls(function, step, conclusion, PlanSource(message["origin"]))
        if "then_try" in message:
            return cls(function, step, KeepPlan(message["then_try"]))
        if "postponed" in message:
            return cls(function, step, Postponed())
        plan = Plan.from_json(message["plan"])
        return cls(function, step, Trial(Phase(message["phase"]), plan, message["traced"]))

    def check(self, function: str, step: int, rank: int) -> None:
        """Raises `ValueError` if this rank is at another place of its script than rank 0."""
        if self.function != function:
            raise ValueError(
                f"rank {rank} is at a step of {function}, rank 0 at a step of {self.function}:"
                " every rank must call training functions in the same order"
            )
        if self.step != step:
            raise ValueError(
                f"rank {rank} is at step {step}, rank 0 at step {self.step}: every rank must call"
                " the training step equally often"
            )
