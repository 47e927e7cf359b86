"""Which form of cost model holds here: the one that predicts steps it has not seen better."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tf_libra.cost_model import ContentionModel, CostModel
from tf_libra.model.plan import Plan
from tf_libra.model.profile import BackwardProfile
from tf_libra.simulation import simulate
from tf_libra.tuning.calibration import calibrate
from tf_libra.tuning.step_times import StepTimes

# A form is tested on the plans held out, and fitted to at least as many others.
_FEWEST_PLANS = 3


@dataclass(frozen=True)
class Form:
    """A cost model with how it was judged.

    Attributes:
      name: of the form, for a reader.
      model: fitted to all steps.
      rest_seconds: what a step takes besides backward.
      held_out_error: median over the plans held out of |predicted / measured step - 1|.
    """

    name: str
    model: CostModel
    rest_seconds: float
    held_out_error: float


def judged_forms(
    profile: BackwardProfile,
    steps: Sequence[StepTimes],
    held_out: frozenset[str],
    num_workers: int,
    partial: ContentionModel,
    whole: ContentionModel,
) -> list[Form]:
    """Both forms, the better first; none where there are too few steps to judge by.

    Args:
      profile: contention-free backward computation.
      steps: usual steps of several plans.
      held_out: fingerprints of the plans to test on.
      num_workers: N >= 2.
      partial: LIBRA's form, fitted without the plans held out.
      whole: LIBRA's form, fitted to everything.
    """
    tested = [step for step in steps if step.plan.fingerprint in held_out]
    fitting = [step for step in steps if step.plan.fingerprint not in held_out]
    if not tested or len(fitting) < _FEWEST_PLANS:
        return []

    def rest_of(model: CostModel, of: Sequence[StepTimes]) -> float:
        return float(np.median([one.seconds - _backward(profile, one.plan, model) for one in of]))

    def error_of(model: CostModel, rest: float) -> float:
        errors = [
            abs((rest + _backward(profile, one.plan, model)) / one.seconds - 1) for one in tested
        ]
        return float(np.median(errors))

    calibration = calibrate(profile, fitting, num_workers)
    everything = calibrate(profile, steps, num_workers)
    forms = [
        Form(
            "processors that share their cores",
            everything.model,
            everything.rest_seconds,
            error_of(calibration.model, calibration.rest_seconds),
        ),
        Form(
            "LIBRA's",
            whole,
            rest_of(whole, steps),
            error_of(partial, rest_of(partial, fitting)),
        ),
    ]
    return sorted(forms, key=lambda form: form.held_out_error)


def _backward(profile: BackwardProfile, plan: Plan, model: CostModel) -> float:
    return simulate(profile, plan, model).backward_seconds
