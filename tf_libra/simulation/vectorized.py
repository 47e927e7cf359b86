"""Vectorized simulation of steps, for searches and fits that compare thousands of plans."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tf_libra.cost_model import CostModel
from tf_libra.specs.backward_profile import BackwardProfile

_Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class VectorizedTimes:
    """Simulated times of plans on one stream; seconds since the start of backward.

    Attributes:
      starts: starts of all-reduces, shape [..., groups].
      ends: ends of all-reduces, shape [..., groups].
      step: end of the last update, shape [...].
    """

    starts: _Array
    ends: _Array
    step: _Array


def vectorized_times(
    overlapped: _Array, exclusive: _Array, rates: _Array, left_at_start: _Array, updates: _Array
) -> VectorizedTimes:
    """Compute the timelines of several plans, each as `simulate` does.

    Shapes are [..., groups] and broadcast. Empty groups at the end of a plan take no time.

    Args:
      overlapped: p(c, r) + a of each group.
      exclusive: q(c, r) + a.
      rates: share of its speed that computation keeps during the group's all-reduce.
      left_at_start: contention-free seconds of backward computation from the group's readiness to
        the end, [..., 1 + groups]; element 0 is all of backward.
      updates: contention-free seconds of the updates that may begin after each group.
    """
    overlapped, exclusive, rates, updates, left_when_ready = map(
        _groups_first, (overlapped, exclusive, rates, updates, left_at_start)
    )
    hidden = overlapped * rates  # computation that each can overlap
    some_hidden = np.where(hidden > 0, hidden, 1.0)
    shape = np.broadcast_shapes(hidden.shape, (len(updates), *left_when_ready.shape[1:]))
    starts, ends = np.empty(shape), np.empty(shape)
    left = left_when_ready[1]
    clock = left_when_ready[0] - left
    pending: _Array = np.zeros(())  # updates of groups that are all-reduced
    for index in range(len(starts)):
        starts[index] = clock
        computation = left + pending
        done = np.minimum(computation, hidden[index])
        share = done / some_hidden[index]
        clock = clock + share * overlapped[index] + (1 - share) * exclusive[index]
        ends[index] = clock
        undone = computation - done
        # Backward computation goes before updates, so updates are what remains first.
        left = np.maximum(0.0, undone - pending)
        pending = undone - left + updates[index]
        if index + 1 < len(starts):
            next_left = left_when_ready[index + 2]
            clock = clock + np.maximum(0.0, left - next_left)
            left = np.minimum(left, next_left)
    return VectorizedTimes(np.moveaxis(starts, 0, -1), np.moveaxis(ends, 0, -1), clock + pending)


def _groups_first(values: _Array) -> _Array:
    """Move the last axis to the front, with contiguous values per group."""
    return np.ascontiguousarray(values.transpose(-1, *range(values.ndim - 1)))


def vectorized_steps(
    profile: BackwardProfile,
    cost: CostModel,
    stops: Sequence[Sequence[int]],
    threads: Sequence[Sequence[int]],
) -> _Array:
    """Returns seconds from the start of backward to the end of the last update, shape [plans].

    Equals `simulate` of each plan on one stream.

    Args:
      profile: the gradients.
      cost: the cost model.
      stops: for each plan, the ends of its groups as tensor indices; the last is the number of
        tensors.
      threads: for each plan, the communication threads of its groups.
    """
    most = max(map(len, stops))
    last = len(profile.tensors)
    # Empty groups at the end take no time: pad all plans to the same number.
    ends = np.array([(*plan, *(last,) * (most - len(plan))) for plan in stops])
    lanes = np.array([(*plan, *(plan[-1],) * (most - len(plan))) for plan in threads])
    edges = np.concatenate([np.zeros((len(ends), 1), int), ends], axis=1)
    sizes = np.diff(profile.effective_before[edges])
    return vectorized_times(
        cost.overlapped_all_reduce(sizes, lanes),
        cost.exclusive_all_reduce(sizes, lanes),
        cost.mean_compute_rate(sizes, lanes),
        profile.compute_after[edges],
        np.diff(profile.updates_before[edges]),
    ).step
