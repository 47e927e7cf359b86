"""A step that another strategy repeats, on one of two ranks that do the same, and fails."""

from collections.abc import Callable
from functools import partial
from typing import Any, cast
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from tf_libra.runtime.protocol import (
    NOTHING_ACCEPTED,
    AcceptedDifferences,
    CandidateStep,
    TrialError,
)
from tf_libra.runtime.repeated_step import RepeatedStep, ScaleEvidence, repeat
from tf_libra.runtime.training_step import TrainingFunction
from tf_libra.variable_sync.bound_variables import BoundVariable

Change = Callable[[Any], Any]


class Other:
    """Stand-in of a candidate that adds to a variable, as data parallelism does.

    Attributes:
        fails_in: what raises, on all ranks, in the step: "", "step" or "synchronization".
        change: returns what a step adds.
    """

    accepted = NOTHING_ACCEPTED
    least_precise_dtype = tf.float32

    def __init__(
        self,
        variable: tf.Variable,
        fails_in: str = "",
        change: Callable[[], Any] = lambda: [1.0, 1.0],
    ) -> None:
        self.change = change
        handle = variable.handle
        bound = BoundVariable(0, "w", handle, variable.dtype, variable.shape, trainable=True)
        self.bound_variables = {bound.key: bound}
        self.step_number = 4
        self.variable, self.fails_in = variable, fails_in

    def step(self, *_: Any) -> Any:
        self.step_number += 1
        if self.fails_in == "step":
            raise TrialError("no memory (on rank 1)")
        self.variable.assign_add(self.change())
        return tf.constant(2.0)

    def synchronize_variables(self) -> None:
        if self.fails_in == "synchronization":
            raise TrialError("no memory (on rank 1)")


class DataParallelism(Other):
    def exchange(self, value: Any) -> list[Any]:
        return ["" if isinstance(value, str) else ("", {}), value]


def repeated(change: Change, other: Change, may_differ: bool = False) -> RepeatedStep:
    """Returns a step by data parallelism that another strategy has repeated.

    Args:
        change: returns what data parallelism adds to its argument, the weights.
        other: the same of the other strategy.
        may_differ: whether weights may differ for a reason that the user allows.
    """
    start = np.array([3.0, 4.0, 5.0])
    weights = tf.Variable(start, dtype=tf.float32)
    first = DataParallelism(weights, change=lambda: change(weights.numpy().astype(float)))
    candidate = Other(weights, change=lambda: other(weights.numpy().astype(float)))
    if may_differ:
        candidate.accepted = AcceptedDifferences(frozenset(candidate.bound_variables))
    found = repeat(cast(TrainingFunction, first), cast(CandidateStep, candidate), (), {}, False)
    assert candidate.step_number == 4
    np.testing.assert_allclose(weights, start + change(start), rtol=1e-6)
    return found


def describe_repeated(change: Change, other: Change) -> str:
    return repeated(change, other).reason


def test_a_small_share_of_another_gradient_is_a_difference() -> None:
    """A sum over examples that is worth a quarter of a percent of the gradient."""
    assert not describe_repeated(lambda w: 0.1 * w, lambda w: 0.1 * w * (1 + 1e-6))
    reason = describe_repeated(lambda w: 0.1 * w, lambda w: 0.1 * w * 1.0025)
    assert reason == "variable 'w' would change otherwise"


def test_a_gradient_that_is_zero_but_for_rounding_is_no_difference() -> None:
    """The last bits of weights determine the whole change, which each strategy rounds its way."""

    def change(weights: Any, bits: int = 0) -> Any:
        return 1e-3 * np.sin(1e8 * weights + bits)

    assert not describe_repeated(change, partial(change, bits=1))
    assert describe_repeated(change, lambda w: change(w) + 0.1)
    assert not repeated(change, lambda w: 3 * change(w), may_differ=True).scales
    assert repeated(change, lambda w: change(w) + 0.1, may_differ=True).scales


@pytest.mark.parametrize(
    ("steps", "is_left_out"),
    [
        ([{}], False),
        ([{"w": 2.0}, {}], False),
        ([{"w": 2.0}, {"v": 2.0}], False),
        ([{"w": 2.0}, {"w": 0.5}], False),
        ([{"w": 2.0}, {"w": 1.5, "v": 3.0}, {"v": 2.0}], False),
        ([{"v": 2.0, "w": 2.0}, {"w": 1.5}, {"w": 1.9, "v": 0.5}], True),
    ],
)
def test_weights_of_another_scale_are_no_chance_if_every_step_has_them(
    steps: list[dict[str, float]], is_left_out: bool
) -> None:
    evidence = ScaleEvidence()
    for scales in steps[:-1]:
        assert not evidence.add(scales) and not evidence.is_complete
    reason = evidence.add(steps[-1])
    assert evidence.is_complete and ("variable 'w'" in reason) is is_left_out


@pytest.mark.parametrize("fails_in", ["", "step", "synchronization"])
def test_step_that_fails_on_all_ranks_is_undone_and_trained_by_data_parallelism(
    fails_in: str,
) -> None:
    variable = tf.Variable([3.0, 4.0])
    first, other = DataParallelism(variable, ""), Other(variable, fails_in)
    found = repeat(cast(TrainingFunction, first), cast(CandidateStep, other), (), {}, False)
    assert found.reason == ("no memory (on rank 1)" if fails_in else "")
    assert float(found.result) == 2.0 and variable.numpy().tolist() == [4.0, 5.0]


@pytest.mark.parametrize("num_reads", [0, 1])
def test_rank_that_cannot_hold_values_says_so_and_undoes_the_step(num_reads: int) -> None:
    """Values from before the step, and those after it."""
    variable = tf.Variable([3.0, 4.0])
    first, other = DataParallelism(variable, ""), Other(variable, "")
    error = tf.errors.ResourceExhaustedError(None, None, "no memory")
    reads = mock.Mock(side_effect=[tf.constant([3.0, 4.0])] * num_reads + [error])
    with mock.patch.object(BoundVariable, "read_value", reads):
        found = repeat(cast(TrainingFunction, first), cast(CandidateStep, other), (), {}, False)
    assert found.reason == "ResourceExhaustedError: no memory (on rank 1)"
    assert float(found.result) == 2.0 and variable.numpy().tolist() == [4.0, 5.0]
