"""Vectorized residuals: the errors of all candidates for a model and its times on measured steps.

A fit looks at some hundred candidates and at a few steps under each. Simulated one by one, the
candidates would take most of tuning's computation, while all ranks wait; as arrays they take next
to nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tf_libra.autotune.parametric_models import FamilyCosts
from tf_libra.autotune.step_times import StepTimes
from tf_libra.simulation.sequential import left_when_ready
from tf_libra.simulation.vectorized import vectorized_times
from tf_libra.specs.backward_profile import BackwardProfile

_Array = NDArray[np.float64]

# How exactly a step is known, and when one of its all-reduces begins or ends, in shares of a step.
_STEP_NOISE = 0.02
_SPAN_NOISE = 0.04


def updated_shares(profile: BackwardProfile) -> _Array:
    """The share of the updates' time that is of the tensors before each, and 1: [tensors + 1].

    An update takes its time per parameter; dtypes differ little in a model.
    """
    return np.asarray(profile.bytes_before / max(int(profile.num_bytes.sum()), 1))


@dataclass(frozen=True, eq=False)
class Candidates:
    """Candidate models and times to be judged; times are of shape [candidates].

    Attributes:
      costs: of the measured steps' all-reduces.
      before: seconds from a step's start to the start of backward.
      after: seconds from the end of backward and of the updates to the step's end.
      pace: how many times as long as profiled computation takes.
      updates: seconds of all updates.
    """

    costs: FamilyCosts
    before: _Array
    after: _Array
    pace: _Array
    updates: _Array


@dataclass(frozen=True, eq=False)
class MeasuredSteps:
    """Usual steps by column, as what is predicted of them.

    Plans of fewer groups than others have groups of nothing at their end, which take no time and
    weigh nothing.

    Attributes:
      num_bytes: of groups, shape [plans, groups].
      threads: of groups, shape [plans, groups].
      left: computation left when each group is ready, before the first all of it, as profiled,
        [plans, 1 + groups].
      updated: the share of the updates that each group lets begin, [plans, groups].
      seconds: of steps, [plans].
      spans: starts and ends of all-reduces, [2, plans, groups].
      weights: of spans, [plans, groups].
    """

    num_bytes: NDArray[np.int64]
    threads: NDArray[np.int64]
    left: _Array
    updated: _Array
    seconds: _Array
    spans: _Array
    weights: _Array

    @classmethod
    def of(cls, profile: BackwardProfile, steps: Sequence[StepTimes]) -> "MeasuredSteps":
        """The columns of steps under plans that each run on one stream.

        Raises:
          ValueError: a plan has several streams.
        """
        shape = len(steps), max(len(step.plan.groups) for step in steps)
        updated_before = updated_shares(profile)
        num_bytes, threads = np.zeros(shape, np.int64), np.ones(shape, np.int64)
        left, updated = np.zeros((shape[0], shape[1] + 1)), np.zeros(shape)
        spans, weights = np.zeros((2, *shape)), np.zeros(shape)
        left[:, 0] = profile.compute_after[0]
        for row, step in enumerate(steps):
            plan = step.plan
            if plan.num_streams > 1:
                raise ValueError(f"steps must run on one stream, got one on {plan.num_streams}")
            groups = slice(0, len(plan.groups))
            num_bytes[row, groups] = plan.group_bytes
            threads[row] = plan.groups[-1].num_threads
            threads[row, groups] = [group.num_threads for group in plan.groups]
            left[row, 1 : 1 + len(plan.groups)] = left_when_ready(profile, plan)
            updated[row, groups] = np.diff(
                updated_before[[0, *(group.ended for group in plan.groups)]]
            )
            spans[:, row, groups] = step.spans.T
            # However many groups a plan has, it is one plan.
            noise = step.seconds * _SPAN_NOISE * len(plan.groups) ** 0.5
            weights[row, groups] = 1 / noise
        seconds = np.array([step.seconds for step in steps])
        return cls(num_bytes, threads, left, updated, seconds, spans, weights)

    def missed(self, candidates: Candidates) -> _Array:
        """Returns each candidate's errors on ends of steps, and starts and ends of all-reduces.

        Returns:
          Shape [candidates, plans · (1 + 2·groups)], in units of what is known no better.
        """
        costs = candidates.costs
        times = vectorized_times(
            costs.overlapped,
            costs.exclusive,
            costs.rates,
            candidates.pace[:, None, None] * self.left,
            candidates.updates[:, None, None] * self.updated,
        )
        seconds = (candidates.before + candidates.after)[:, None] + times.step
        before = candidates.before[:, None, None]
        missed = [
            (seconds / self.seconds - 1) / _STEP_NOISE,
            (times.starts + before - self.spans[0]) * self.weights,
            (times.ends + before - self.spans[1]) * self.weights,
        ]
        return np.concatenate([one.reshape(len(seconds), -1) for one in missed], axis=1)
