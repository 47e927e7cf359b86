"""Residuals of many candidate fits on measured steps, as arrays.

A fit evaluates hundreds of candidates on a few steps each. Simulated one by one they would take
most of tuning's computation, while all ranks wait; vectorized they take next to nothing.
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
from tf_libra.specs.effective_bytes import effective_group_bytes

_Array = NDArray[np.float64]

# Noise of the ends of a step and of its backward, which are to be predicted, and of the start and
# end of any other all-reduce, as shares of a step; and of an all-reduce after the last rank has
# arrived, as a share of itself.
_STEP_NOISE = 0.02
_SPAN_NOISE = 0.04
_SENDING_NOISE = 0.2
_SHORTEST = 1e-9


def updated_shares(profile: BackwardProfile) -> _Array:
    """Returns the share of the updates' time before each tensor, and 1 at the end: [tensors + 1].

    Updates are assumed to take time in proportion to bytes.
    """
    return np.asarray(profile.bytes_before / max(int(profile.num_bytes.sum()), 1))


@dataclass(frozen=True, eq=False)
class CandidateFits:
    """Candidate models and times of a step; times have shape [candidates].

    Attributes:
      costs: costs of the measured steps' all-reduces.
      before: seconds from a step's start to the start of backward.
      after: seconds from the end of backward and of the updates to the step's end.
      slowdown: ratio of computation's duration to the profiled one.
      updates: seconds of all updates.
    """

    costs: FamilyCosts
    before: _Array
    after: _Array
    slowdown: _Array
    updates: _Array


@dataclass(frozen=True, eq=False)
class MeasuredSteps:
    """Steady-state steps as columns, in the form of their prediction.

    Plans with fewer groups than others are padded by groups of 0 bytes and weight 0. Steps that
    communicate after backward are traced, which delays them: of these only durations count.

    Attributes:
      num_bytes: effective bytes of groups, [plans, groups].
      threads: threads of groups, [plans, groups].
      left: profiled computation left when each group is ready, preceded by all of it,
        [plans, 1 + groups].
      updated: share of the updates that each group starts, [plans, groups].
      seconds: seconds of steps, [plans].
      step_weights: weights of these, [plans].
      spans: starts and ends of all-reduces, [2, plans, groups].
      weights: weights of spans, [2, plans, groups].
      sending: seconds of all-reduces after the last rank has arrived, [plans, groups].
      sending_weights: weights of these, [plans, groups].
    """

    num_bytes: NDArray[np.int64]
    threads: NDArray[np.int64]
    left: _Array
    updated: _Array
    seconds: _Array
    step_weights: _Array
    spans: _Array
    weights: _Array
    sending: _Array
    sending_weights: _Array

    @classmethod
    def from_steps(cls, profile: BackwardProfile, steps: Sequence[StepTimes]) -> "MeasuredSteps":
        """Builds the columns of steps under plans of one stream.

        Raises:
          ValueError: a plan has several streams.
        """
        shape = len(steps), max(len(step.plan.groups) for step in steps)
        updated_before = updated_shares(profile)
        num_bytes, threads = np.zeros(shape, np.int64), np.ones(shape, np.int64)
        left, updated = np.zeros((shape[0], shape[1] + 1)), np.zeros(shape)
        spans, weights = np.zeros((2, *shape)), np.zeros((2, *shape))
        sending, sending_weights = np.zeros(shape), np.zeros(shape)
        seconds, step_weights = np.zeros(shape[0]), np.zeros(shape[0])
        left[:, 0] = profile.compute_after[0]
        for row, step in enumerate(steps):
            plan = step.plan
            if plan.num_streams > 1:
                raise ValueError(f"steps must use 1 stream, got a plan of {plan.num_streams}")
            groups = slice(0, len(plan.groups))
            num_bytes[row, groups] = effective_group_bytes(profile, plan)
            threads[row] = plan.groups[-1].num_threads
            threads[row, groups] = [group.num_threads for group in plan.groups]
            left[row, 1 : 1 + len(plan.groups)] = left_when_ready(profile, plan)
            updated[row, groups] = np.diff(
                updated_before[[0, *(group.ended for group in plan.groups)]]
            )
            spans[:, row, groups] = step.spans.T
            seconds[row] = step.seconds
            if not plan.after_backward:
                step_weights[row] = 1 / (step.seconds * _STEP_NOISE)
                # All plans have the same weight, whatever their number of groups.
                noise = step.seconds * _SPAN_NOISE * len(plan.groups) ** 0.5
                weights[:, row, groups] = 1 / noise
                # Backward ends with the last all-reduce.
                weights[1, row, len(plan.groups) - 1] = step_weights[row]
            sending[row, groups] = step.sending
            is_known = (step.sending > 0) & (num_bytes[row, groups] > 0)
            sending_weights[row, groups] = is_known / (_SENDING_NOISE * len(plan.groups) ** 0.5)
        return cls(
            num_bytes,
            threads,
            left,
            updated,
            seconds,
            step_weights,
            spans,
            weights,
            sending,
            sending_weights,
        )

    def residuals(self, candidates: CandidateFits) -> _Array:
        """Returns each candidate's errors on steps and on all-reduces.

        The errors are those on ends of steps, on starts and ends of all-reduces, and on their
        durations after the last rank has arrived.

        Returns:
          Shape [candidates, plans · (1 + 3·groups)], in units of the measurements' noise.
        """
        costs = candidates.costs
        times = vectorized_times(
            costs.waiting + costs.overlapped,
            costs.waiting + costs.exclusive,
            costs.mean_rates,
            candidates.slowdown[:, None, None] * self.left,
            candidates.updates[:, None, None] * self.updated,
        )
        seconds = (candidates.before + candidates.after)[:, None] + times.step
        before = candidates.before[:, None, None]
        errors = [
            (seconds - self.seconds) * self.step_weights,
            (times.starts + before - self.spans[0]) * self.weights[0],
            (times.ends + before - self.spans[1]) * self.weights[1],
            self._sending_errors(times.ends - times.starts - costs.waiting),
        ]
        return np.concatenate([error.reshape(len(seconds), -1) for error in errors], axis=1)

    def _sending_errors(self, seconds: _Array) -> _Array:
        """Returns weighted errors of the logarithms of durations without waiting.

        What overlaps an all-reduce is simulated, since updates have no timestamps.
        """
        known = self.sending_weights > 0
        simulated = np.where(known, np.maximum(seconds, _SHORTEST), 1.0)
        measured = np.where(known, self.sending, 1.0)
        return np.log(simulated / measured) * self.sending_weights
