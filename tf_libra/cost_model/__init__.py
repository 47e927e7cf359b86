"""Cost models: contention on GPUs, shares of CPU cores, and their fit to measured steps."""

from tf_libra.cost_model.base import CostModel
from tf_libra.cost_model.contention import ContentionModel
from tf_libra.cost_model.cpu_share import ProcessorModel
from tf_libra.cost_model.fit_quality import Evidence, cost_model_from_json, evidence_from_json
from tf_libra.cost_model.fitting import FitResult, fit
from tf_libra.cost_model.samples import (
    OverlapSample,
    computation_errors,
    median_error,
    prediction_errors,
)

__all__ = [
    "ContentionModel",
    "CostModel",
    "Evidence",
    "FitResult",
    "OverlapSample",
    "ProcessorModel",
    "computation_errors",
    "cost_model_from_json",
    "evidence_from_json",
    "fit",
    "median_error",
    "prediction_errors",
]
