"""Stand-ins of the strategies that `auto` compares, and steps of trials between them."""

from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from tf_libra import config
from tf_libra.autotune import Budget, Phase
from tf_libra.planning.one_worker import OneWorkerComparison
from tf_libra.runtime.family_prediction import Reference
from tf_libra.runtime.family_step import FamilyStep
from tf_libra.runtime.protocol import TrialError, TuningState
from tf_libra.runtime.strategy_kinds import Links

ALONE, OTHER = "one-rank", "spp"


class DataParallelism:
    """Stand-in of a `TrainingFunction` that has tuned in a job of two ranks."""

    error_feedback = None
    is_method = False
    gathers_rows = False
    cache = None

    def __init__(self) -> None:
        options = SimpleNamespace(engine="lanes", family_conflict="", sparse_as_dense=False)
        self.rendezvous = SimpleNamespace(
            is_over=False, rank_and_size=(1, 2), options=options, job=None
        )
        self.step_number = 7
        self.settled = True
        self.chosen: list[str] = []  # digests of values that ranks may choose
        self.kinds: list[Any] = []  # of the arguments of steps, as exchanged
        self.now, self.step_seconds = 0.0, 1e-3

    def clock(self) -> float:
        """Returns seconds, which every look at the clock takes a little of."""
        self.now += 1e-6
        return self.now

    @property
    def state(self) -> TuningState:
        return TuningState(Phase.RUN if self.settled else Phase.TRACE)

    def leave_job(self) -> None:
        self.rendezvous.is_over = False
        self.step_number = 0
        self.settled = False

    def exchange_in_step(self, value: Any) -> list[Any]:
        self.kinds.append(value)
        return [value, value]

    def exchange(self, value: Any) -> list[Any]:
        return [value, value]

    def chosen_values(self, args: Any, kwargs: Any) -> list[str] | None:
        return None if kwargs else [*self.chosen]

    def step(self, args: Any, kwargs: Any, num_steps: int = 1) -> int:
        self.step_number += num_steps
        self.now += num_steps * self.step_seconds
        return self.step_number

    def count_other_step(self, strategy: str) -> None:
        pass

    def explain(self) -> str:
        return ""


class Other:
    """Stand-in of a candidate that has measured."""

    is_method = is_tried = is_undoable = False
    settled = True
    undo_seconds = 0.0
    predicted_seconds: float | None = None
    link_share = 0.0
    plan: Any = None
    use_of_rows: str | None = None
    exceeds_memory = False
    computation = ""
    state = TuningState(Phase.RUN)

    def __init__(self) -> None:
        self.step_number = 0
        self.fails = False
        self.undoable: list[bool] = []  # by step
        self.planned_again: list[bool] = []  # with layers measured again, or not

    def plan_again(self, with_layers: bool) -> None:
        self.planned_again.append(with_layers)

    def explain(self) -> str:
        return ""

    def share_traces(self, other: Any) -> None:
        pass

    def rejects(self, *_: Any) -> None:
        pass

    def step(self, args: Any, kwargs: Any, num_steps: int = 1) -> str:
        self.undoable.append(self.is_undoable)
        if self.fails:
            raise TrialError("no memory (on rank 1)")
        self.step_number += 1
        return "other"


def train(step: FamilyStep, num_steps: int) -> list[Any]:
    return [step.step((tf.zeros([4, 2]),), {}) for _ in range(num_steps)]


def train_several(step: FamilyStep, num_steps: int = 4) -> Any:
    return step.step(((tf.zeros([4, 2]),) * num_steps,), {}, num_steps)


def limit_trials(
    monkeypatch: pytest.MonkeyPatch, max_steps: int = 150, max_seconds: float = 60.0
) -> None:
    budget = Budget(max_steps, max_seconds)
    monkeypatch.setattr(config.DataParallelOptions, "trial_budget", budget)


def predict(step: FamilyStep, seconds: float | None) -> None:
    """Lets a step of data parallelism take a second, and one of the other strategy `seconds`."""
    forecast = step._candidates.forecast
    compared = OneWorkerComparison(2, 1.0, 2.0)
    forecast.reference = Reference(compared, 1.0, Links(2, 1e9, 0.0, 0.0))
    if seconds is not None:
        forecast.predicted[OTHER] = seconds
