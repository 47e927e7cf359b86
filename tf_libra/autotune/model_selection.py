"""Choice of the form of cost model: the one that better predicts steps it was not fitted to."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tf_libra.autotune.calibration import Calibration, calibrate, calibrate_beside
from tf_libra.autotune.steady_state_samples import usual_samples
from tf_libra.autotune.step_times import StepTimes
from tf_libra.cost_model import ContentionModel, OverlapSample, prediction_errors
from tf_libra.simulation import simulate
from tf_libra.specs.backward_profile import BackwardProfile

# A form is tested on each plan in turn, fitted to the others, which are at least so many.
_FEWEST_OTHERS = 3


@dataclass(frozen=True)
class Form:
    """A cost model with how it was judged.

    Attributes:
      name: of the form, for a reader.
      calibration: to all steps.
      samples: the all-reduces of these steps.
      median_error: median over the samples of |`prediction_errors`|.
      held_out_error: median over the plans, each predicted without it, of |predicted / measured
        step - 1|.
      held_out_backward_error: the same of the end of backward; None if the start of backward is
        unknown.
    """

    name: str
    calibration: Calibration
    samples: tuple[OverlapSample, ...]
    median_error: float | None
    held_out_error: float
    held_out_backward_error: float | None

    @property
    def missed(self) -> float:
        """The sum by which forms are judged: the error of steps and that of their backward."""
        return self.held_out_error + (self.held_out_backward_error or 0.0)


def judged_forms(
    profile: BackwardProfile,
    steps: Sequence[StepTimes],
    without: Mapping[str, ContentionModel],
    whole: ContentionModel,
    before_seconds: float | None = None,
) -> list[Form]:
    """Returns both forms, the better first; an empty list if there are too few steps to judge by.

    A form that cannot predict a step is left out, e.g. if by its fit to the other plans
    computation would not go on concurrently with so many threads.

    Args:
      profile: contention-free backward computation.
      steps: usual steps of several plans.
      without: by fingerprint of a plan LIBRA's form, fitted without that plan's steps.
      whole: LIBRA's form, fitted to everything.
      before_seconds: from a step's start to the start of backward; None if it was not measured.
    """
    tested = [step for step in steps if step.plan.fingerprint in without]
    if not tested or len(steps) <= _FEWEST_OTHERS:
        return []

    def form(
        name: str, calibrated: Callable[[ContentionModel, Sequence[StepTimes]], Calibration]
    ) -> Form:
        steps_missed, backwards_missed = [], []
        for one in tested:
            others = [step for step in steps if step is not one]
            judged = calibrated(without[one.plan.fingerprint], others)
            timeline = simulate(judged.profile, one.plan, judged.model)
            seconds = judged.rest_seconds + timeline.step_seconds
            steps_missed.append(abs(seconds / one.seconds - 1))
            if before_seconds is not None and one.spans[-1, 1] > before_seconds:
                measured = one.spans[-1, 1] - before_seconds
                backwards_missed.append(abs(timeline.backward_seconds / measured - 1))
        final = calibrated(whole, steps)
        samples = usual_samples(final, steps)
        errors = np.abs(prediction_errors(final.model, samples)) if samples else None
        return Form(
            name,
            final,
            samples,
            None if errors is None else float(np.median(errors)),
            float(np.median(steps_missed)),
            float(np.median(backwards_missed)) if backwards_missed else None,
        )

    def processors(_: ContentionModel, steps: Sequence[StepTimes]) -> Calibration:
        hops, per_host = whole.hops, whole.workers_per_host
        return calibrate(profile, steps, whole.num_workers, before_seconds, hops, per_host)

    def libras(model: ContentionModel, steps: Sequence[StepTimes]) -> Calibration:
        return calibrate_beside(model, profile, steps, before_seconds)

    forms = []
    for name, calibrated in (
        ("processors that share their cores", processors),
        ("LIBRA's", libras),
    ):
        with contextlib.suppress(ValueError):
            forms.append(form(name, calibrated))
    return sorted(forms, key=lambda one: one.missed)
