"""Planning of data-parallel training from files or arrays, without TensorFlow."""

from tf_libra.cost_model import (
    ContentionModel,
    OverlapSample,
    ProcessorModel,
    cost_model_from_json,
)
from tf_libra.planning.data_parallel.api import make_plan
from tf_libra.planning.explain import Explanation, explain
from tf_libra.simulation import Timeline, simulate
from tf_libra.specs.backward_profile import BackwardProfile, GradientTensor
from tf_libra.specs.plan import Plan, TensorGroup

__all__ = [
    "BackwardProfile",
    "ContentionModel",
    "Explanation",
    "GradientTensor",
    "OverlapSample",
    "Plan",
    "ProcessorModel",
    "TensorGroup",
    "Timeline",
    "cost_model_from_json",
    "explain",
    "make_plan",
    "simulate",
]
