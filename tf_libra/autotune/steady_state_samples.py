"""The all-reduces of usual steps, as a model that was fitted to these steps predicts each.

The model predicts how long an all-reduce keeps its stream in an untraced step, from when it could
start to its end; plans and displays use the same time. Waiting for other ranks and for a core is
part of it. So these are the samples to judge such a model by.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from tf_libra.autotune.calibration import Calibration
from tf_libra.autotune.step_times import StepTimes
from tf_libra.cost_model import OverlapSample
from tf_libra.simulation.sequential import left_when_ready, updates_of_groups

# An overlap this short lies within the error of stamps: the all-reduce ran alone.
_SHORTEST_OVERLAP = 20e-6


def usual_samples(
    calibration: Calibration, steps: Sequence[StepTimes]
) -> tuple[OverlapSample, ...]:
    """One sample for each all-reduce of the steps that took time.

    Backward computation is over when the last group is ready, which is stamped. The computation
    done concurrently with an all-reduce is what was done between the groups' readiness, shared out
    as the model does. The updates after that have no stamps, and count as calibrated.

    Args:
      calibration: the model, and computation at the pace of these steps.
      steps: under plans that each run on one stream.
    """
    return tuple(sample for step in steps for sample in _samples_of(calibration, step))


def _samples_of(calibration: Calibration, step: StepTimes) -> Iterator[OverlapSample]:
    plan, profile, model = step.plan, calibration.profile, calibration.model
    rates = model.compute_rate([group.num_threads for group in plan.groups])
    done_beside = _done_beside(calibration, step, rates)
    # A group that waits for all of backward is ready at its end, as the last always is.
    computed = float(step.ready.max())
    updates = updates_of_groups(profile, plan)
    clock, pending = computed, 0.0
    for index, (start, stop) in enumerate(step.spans.tolist()):
        num_bytes = plan.group_bytes[index]
        overlap, done = max(min(stop, computed) - start, 0.0), float(done_beside[index])
        # Updates run alone until the all-reduce starts, then concurrently with it.
        begin = max(start, computed)
        pending = max(0.0, pending - max(0.0, begin - clock))
        if stop > begin:
            beside = min(stop - begin, pending / float(rates[index]))
            updated = beside * float(rates[index])
            overlap, done, pending = overlap + beside, done + updated, pending - updated
        clock = max(stop, computed)
        pending += updates[index]
        if overlap <= _SHORTEST_OVERLAP:
            overlap = done = 0.0
        if num_bytes and stop > start:
            yield OverlapSample(
                num_bytes=num_bytes,
                num_threads=plan.groups[index].num_threads,
                compute_seconds=done,
                overlap_seconds=min(overlap, stop - start),
                residual_seconds=max(stop - start - overlap, 0.0),
                group=index,
                plan=plan.fingerprint[:16],
            )


def _done_beside(
    calibration: Calibration, step: StepTimes, rates: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Returns the contention-free seconds of backward that overlap with each group's all-reduce.

    Between two groups' readiness a known part of backward is done, in a time of which all-reduces
    cover a part. The model gives the ratio of the computation done during all-reduces to that done
    alone.
    """
    left = np.array(left_when_ready(calibration.profile, step.plan))
    whole = float(calibration.profile.compute_after[0])
    # Stamps of readiness fall a little now and then; computation goes one way only.
    begins = min([calibration.before_seconds, *step.ready[step.ready > 0].tolist()])
    times = np.maximum.accumulate([begins, *step.ready])
    done = -np.diff([whole, *np.minimum.accumulate(left)])
    from_, to = times[:-1, None], times[1:, None]
    starts, stops = step.spans.T
    covered = np.maximum(0.0, np.minimum(stops, to) - np.maximum(starts, from_))  # [gaps, groups]
    alone = np.maximum(0.0, (to - from_)[:, 0] - covered.sum(axis=1))
    expected = alone + covered @ rates
    times_as_fast = np.divide(done, expected, out=np.zeros_like(done), where=expected > 0)
    return np.asarray(times_as_fast @ covered * rates)
