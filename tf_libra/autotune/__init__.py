"""From the first training steps to a plan: what to try, what came of it, what to conclude.

It drives nothing: `tune` yields experiments, is sent what happened, and returns a conclusion, so
that it can be run against a simulated machine as well.
"""

from tf_libra.autotune.budget import Budget, BudgetTracker
from tf_libra.autotune.drift_detector import CALLS_PER_LOOK, Drift
from tf_libra.autotune.phase import Phase
from tf_libra.autotune.postponing import Pause, PostponingTuner, postponing
from tf_libra.autotune.retuning import DOSE, DriftVerdict, Retuner
from tf_libra.autotune.sampling_plans import (
    TensorSpec,
    measuring_plans,
    one_group_plan,
    random_plans,
)
from tf_libra.autotune.trial import Postponed, Trial, TrialResult
from tf_libra.autotune.tuner_registry import Tuner, TunerKind, way_of
from tf_libra.autotune.tuners import asks_for_a_start, tune
from tf_libra.autotune.tuning_result import PlanSource, TuningResult

__all__ = [
    "CALLS_PER_LOOK",
    "DOSE",
    "Budget",
    "BudgetTracker",
    "Drift",
    "DriftVerdict",
    "Pause",
    "Phase",
    "PlanSource",
    "Postponed",
    "PostponingTuner",
    "Retuner",
    "TensorSpec",
    "Trial",
    "TrialResult",
    "Tuner",
    "TunerKind",
    "TuningResult",
    "asks_for_a_start",
    "measuring_plans",
    "one_group_plan",
    "postponing",
    "random_plans",
    "tune",
    "way_of",
]
