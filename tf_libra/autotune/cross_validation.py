"""Cross-validation of a calibrated model, and the all-reduces of steps as the model sees them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tf_libra.autotune.calibration import Calibration, calibrate
from tf_libra.autotune.parametric_models import CpuShareFamily
from tf_libra.autotune.step_times import StepTimes
from tf_libra.cost_model import OverlapSample
from tf_libra.simulation import simulate
from tf_libra.simulation.sequential import left_when_ready, updates_of_groups
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.effective_bytes import effective_group_bytes

# Fewest plans: a held-out plan is predicted by a fit to at least two others.
MIN_PLANS = 3
# Shorter overlaps lie within the error of timestamps and count as none.
_MIN_OVERLAP = 20e-6


@dataclass(frozen=True)
class HeldOutErrors:
    """Median errors on plans, each predicted by a fit to the steps of the others.

    Attributes:
      step: median of |predicted / measured step - 1|.
      backward: the same for the end of backward; None if its start is unknown.
    """

    step: float
    backward: float | None


def cross_validate(
    profile: BackwardProfile,
    steps: Sequence[StepTimes],
    family: CpuShareFamily,
    before_seconds: float | None = None,
    exclusive_steps: Sequence[StepTimes] = (),
) -> HeldOutErrors:
    """Returns the errors of `calibrate` on plans that the fit has not seen.

    Args:
      profile: contention-free backward computation.
      steps: steady-state steps, one of each plan, `MIN_PLANS` at least.
      family: see `calibrate`.
      before_seconds: see `calibrate`.
      exclusive_steps: steps that communicate after backward, which add to every fit.
    """
    step_errors, backward_errors = [], []
    for step in steps:
        others = [other for other in (*steps, *exclusive_steps) if other is not step]
        calibration = calibrate(profile, others, family, before_seconds)
        timeline = simulate(calibration.profile, step.plan, calibration.model)
        seconds = calibration.rest_seconds + timeline.step_seconds
        step_errors.append(abs(seconds / step.seconds - 1))
        if before_seconds is not None and step.spans[-1, 1] > before_seconds:
            measured = step.spans[-1, 1] - before_seconds
            backward_errors.append(abs(timeline.backward_seconds / measured - 1))
    return HeldOutErrors(
        float(np.median(step_errors)),
        float(np.median(backward_errors)) if backward_errors else None,
    )


def steady_state_samples(
    calibration: Calibration, steps: Sequence[StepTimes]
) -> tuple[OverlapSample, ...]:
    """Returns a sample of each all-reduce of steady-state steps, as the calibrated model sees it.

    A sample lasts from the arrival of the last rank to the end of the all-reduce, since how long a
    rank waits for another depends neither on bytes nor on threads. Backward ends when the last
    group is ready. The computation that overlaps with an all-reduce follows from the groups'
    readiness and the model's rates. The updates after backward have no timestamps and are taken
    from the calibration.

    Args:
      calibration: model, and computation at the machine speed of these steps.
      steps: steps under plans of one stream.
    """
    return tuple(sample for step in steps for sample in _samples_of(calibration, step))


def _samples_of(calibration: Calibration, step: StepTimes) -> Iterator[OverlapSample]:
    plan, profile, model = step.plan, calibration.profile, calibration.model
    sizes = effective_group_bytes(profile, plan)
    rates = model.compute_rate([group.num_threads for group in plan.groups])
    overlapped_work = _overlapped_work(calibration, step, rates)
    # The last group, or a group that waits for all of backward, is ready at its end.
    computed = float(step.ready.max())
    updates = updates_of_groups(profile, plan)
    clock, pending = computed, 0.0
    spans = np.stack([step.spans[:, 1] - step.sending, step.spans[:, 1]], axis=1)
    for index, (start, stop) in enumerate(spans.tolist()):
        num_bytes = sizes[index]
        overlap, work = max(min(stop, computed) - start, 0.0), float(overlapped_work[index])
        # Pending updates run alone until the all-reduce starts, then concurrently with it.
        begin = max(start, computed)
        pending = max(0.0, pending - max(0.0, begin - clock))
        if stop > begin:
            updating = min(stop - begin, pending / float(rates[index]))
            updated = updating * float(rates[index])
            overlap, work, pending = overlap + updating, work + updated, pending - updated
        clock = max(stop, computed)
        pending += updates[index]
        if overlap <= _MIN_OVERLAP:
            overlap = work = 0.0
        if num_bytes and stop > start:
            yield OverlapSample(
                num_bytes=num_bytes,
                num_threads=plan.groups[index].num_threads,
                compute_seconds=work,
                overlap_seconds=min(overlap, stop - start),
                residual_seconds=max(stop - start - overlap, 0.0),
                group=index,
                plan=plan.fingerprint[:16],
            )


def _overlapped_work(
    calibration: Calibration, step: StepTimes, rates: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Returns the contention-free seconds of backward that overlap with each all-reduce.

    The work between two groups' readiness is known. All-reduces cover a part of that time; the
    model gives the ratio of the rates with and without them.
    """
    left = np.array(left_when_ready(calibration.profile, step.plan))
    whole = float(calibration.profile.compute_after[0])
    # Readiness timestamps are not exactly monotonic; computation is.
    begins = min([calibration.before_seconds, *step.ready[step.ready > 0].tolist()])
    times = np.maximum.accumulate([begins, *step.ready])
    work = -np.diff([whole, *np.minimum.accumulate(left)])
    from_, to = times[:-1, None], times[1:, None]
    stops = step.spans[:, 1]
    starts = stops - step.sending
    covered = np.maximum(0.0, np.minimum(stops, to) - np.maximum(starts, from_))  # [gaps, groups]
    alone = np.maximum(0.0, (to - from_)[:, 0] - covered.sum(axis=1))
    expected = alone + covered @ rates
    speed = np.divide(work, expected, out=np.zeros_like(work), where=expected > 0)
    return np.asarray(speed @ covered * rates)
