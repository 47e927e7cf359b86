from tf_libra.cost_model.contention import ContentionModel, OverlapSample
from tf_libra.cost_model.fitting import FitResult, computation_errors, fit, prediction_errors

__all__ = [
    "ContentionModel",
    "FitResult",
    "OverlapSample",
    "computation_errors",
    "fit",
    "prediction_errors",
]
