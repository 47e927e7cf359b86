"""Autotuning: from the first training steps to a plan, and retuning when step times drift.

Tuners are generators (`tuner.py`): they yield trials, are sent their results and return a
`TuningResult`. Importing the package registers its tuners.
"""

from tf_libra.autotune import model_tuner as model_tuner
from tf_libra.autotune import portfolio_tuner as portfolio_tuner
from tf_libra.autotune import search_tuner as search_tuner
from tf_libra.autotune.budget import Budget, BudgetTracker
from tf_libra.autotune.drift_detector import STEPS_PER_DRIFT_CHECK, DriftDetector
from tf_libra.autotune.postponement import Postponement, PostponingTuner, postpone_trials
from tf_libra.autotune.retuning import RETUNE_STEPS_PER_CHECK, DriftVerdict, Retuner
from tf_libra.autotune.sampling_plans import (
    TensorSpec,
    measuring_plans,
    one_group_plan,
    random_plans,
)
from tf_libra.autotune.trial import Phase, Postponed, Trial, TrialResult
from tf_libra.autotune.tuner import Tuner, TunerKind, WireFormat, tune, tuner_for, uses_warm_start
from tf_libra.autotune.tuning_result import PlanSource, TuningResult

__all__ = [
    "RETUNE_STEPS_PER_CHECK",
    "STEPS_PER_DRIFT_CHECK",
    "Budget",
    "BudgetTracker",
    "DriftDetector",
    "DriftVerdict",
    "Phase",
    "PlanSource",
    "Postponed",
    "Postponement",
    "PostponingTuner",
    "Retuner",
    "TensorSpec",
    "Trial",
    "TrialResult",
    "Tuner",
    "TunerKind",
    "TuningResult",
    "WireFormat",
    "measuring_plans",
    "one_group_plan",
    "postpone_trials",
    "random_plans",
    "tune",
    "tuner_for",
    "uses_warm_start",
]
