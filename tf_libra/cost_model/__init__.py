from tf_libra.cost_model.base import CostModel
from tf_libra.cost_model.contention import ContentionModel, OverlapSample
from tf_libra.cost_model.cpu_share import ProcessorModel
from tf_libra.cost_model.fit_quality import Evidence, evidence_from_json
from tf_libra.cost_model.fitting import FitResult, computation_errors, fit, prediction_errors
from tf_libra.cost_model.serialization import cost_model_from_json

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
    "prediction_errors",
]
