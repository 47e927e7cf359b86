from tf_libra.cost_model.contention import ContentionModel, OverlapSample
from tf_libra.cost_model.cost import CostModel
from tf_libra.cost_model.evidence import Evidence, evidence_from_json
from tf_libra.cost_model.fitting import FitResult, computation_errors, fit, prediction_errors
from tf_libra.cost_model.processor import ProcessorModel
from tf_libra.cost_model.reading import cost_model_from_json

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
