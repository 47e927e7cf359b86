"""The steps of many plans at once, for searches that compare thousands of them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tf_libra.cost_model import CostModel
from tf_libra.model.profile import BackwardProfile


def steps_of_many(
    profile: BackwardProfile,
    cost: CostModel,
    stops: Sequence[Sequence[int]],
    threads: Sequence[Sequence[int]],
) -> NDArray[np.float64]:
    """Returns seconds from the start of backward to the end of the last update, shape [plans].

    What `simulate` says of plans on one stream, as arrays over the plans instead of one by one.

    Args:
      profile: the gradients.
      cost: the cost model.
      stops: of every plan, after which tensors its groups end, the last at the last tensor.
      threads: of every plan, its groups' communication threads.
    """
    most = max(map(len, stops))
    last = len(profile.tensors)
    # Groups of nothing at the end take no time: all plans get as many.
    ends = np.array([(*one, *(last,) * (most - len(one))) for one in stops])
    lanes = np.array([(*one, *(one[-1],) * (most - len(one))) for one in threads])
    starts = np.concatenate([np.zeros((len(ends), 1), int), ends[:, :-1]], axis=1)
    sizes = profile.bytes_before[ends] - profile.bytes_before[starts]
    updates = profile.updates_before[ends] - profile.updates_before[starts]
    overlapped = cost.overlapped_all_reduce(sizes, lanes)
    exclusive = cost.exclusive_all_reduce(sizes, lanes)
    rates = cost.compute_rate(lanes)
    left_at_start = profile.compute_after[ends]

    left = left_at_start[:, 0]
    clock = float(profile.compute_after[0]) - left
    pending = np.zeros(len(ends))  # updates of groups that are all-reduced
    end = clock
    for index in range(most):
        computation = (left + pending) / rates[:, index]
        alone = overlapped[:, index]
        is_hidden = alone <= computation
        share = np.divide(computation, alone, out=np.ones_like(alone), where=alone > 0)
        shown = computation + exclusive[:, index] * (1 - share)
        end = clock + np.where(is_hidden, alone, shown)
        done = np.where(is_hidden, alone, computation) * rates[:, index]
        undone = np.maximum(0.0, left + pending - done)
        # What is not done of both is of updates first: backward computation goes before them.
        left, pending = np.maximum(0.0, undone - pending), np.minimum(undone, pending)
        pending = pending + updates[:, index]
        clock = end
        if index + 1 < most:
            next_left = left_at_start[:, index + 1]
            clock = end + np.maximum(0.0, left - next_left)
            left = np.minimum(left, next_left)
    return np.asarray(end + pending)
