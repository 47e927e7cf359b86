"""Steps of `auto` when the ranks of a job change, or leave it."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import tensorflow as tf

from tf_libra import config
from tf_libra.autotune import Phase
from tf_libra.runtime.family_step import FamilyStep
from tf_libra.runtime.protocol import TuningState
from tf_libra.runtime.training_step import TrainingFunction


class DataParallelism:
    """Stand-in of a `TrainingFunction` that has tuned in a job of two ranks."""

    error_feedback = None
    is_method = False
    gathers_rows = False
    cache = None

    def __init__(self) -> None:
        options = SimpleNamespace(engine="lanes")
        self.rendezvous = SimpleNamespace(is_over=False, place=(1, 2), options=options)
        self.step_number = 7
        self.settled = True
        self.kinds: list[Any] = []  # of the arguments of steps, as exchanged

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

    def step(self, args: Any, kwargs: Any, num_steps: int = 1) -> int:
        self.step_number += num_steps
        return self.step_number


@pytest.fixture
def first() -> DataParallelism:
    return DataParallelism()


@pytest.fixture
def step(first: DataParallelism) -> FamilyStep:
    options = config.resolve({"progress": False})
    return FamilyStep(lambda inputs: None, options, cast(TrainingFunction, first), families=())


def test_first_step_after_ranks_have_changed_exchanges_nothing_with_those_of_the_last_job(
    first: DataParallelism, step: FamilyStep
) -> None:
    first.rendezvous.is_over = True
    assert step.step((tf.zeros([4, 2]),), {}) == 1
    assert first.kinds == []


def test_ranks_compare_arguments_once_data_parallelism_has_tuned(
    first: DataParallelism, step: FamilyStep
) -> None:
    step.step((tf.zeros([4, 2]), 3), {})
    assert first.kinds == [["float32 (4, 2)", "3"]]
