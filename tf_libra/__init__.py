"""TF-Libra: tensor fusion and communication threads, chosen together, for data-parallel TensorFlow.

Names are imported when first used (PEP 562), so that planning works where TensorFlow and Horovod
are not installed.
"""

import importlib
from typing import TYPE_CHECKING, Any

from tf_libra.internal.lazy_names import lazy_getattr as _lazy_getattr
from tf_libra.launcher import worker_hooks as _worker

if TYPE_CHECKING:
    from tf_libra import (
        bursts,
        collectives,
        elastic,
        keras,
        nccl,
        pipelines,
        planning,
        strategies,
    )
    from tf_libra.background_jobs.manager import background
    from tf_libra.config import Faults, Tuning
    from tf_libra.cost_model import (
        ContentionModel,
        OverlapSample,
        ProcessorModel,
        cost_model_from_json,
    )
    from tf_libra.decorator import Optimized, optimize
    from tf_libra.model_parallel.capture.trace_hooks import boundary
    from tf_libra.model_parallel.planning.burst import make_burst_plan
    from tf_libra.model_parallel.planning.pipeline import make_pipeline_plan
    from tf_libra.model_parallel.simulation import simulate_pipeline
    from tf_libra.planning import make_plan
    from tf_libra.ranks import local_rank, local_size, rank, size
    from tf_libra.simulation import simulate
    from tf_libra.specs.backward_profile import BackwardProfile, GradientTensor
    from tf_libra.specs.burst import BurstPlan
    from tf_libra.specs.cluster import Cluster
    from tf_libra.specs.layer_graph import LayerGraph
    from tf_libra.specs.pipeline import PipelinePlan
    from tf_libra.specs.plan import Plan, TensorGroup
    from tf_libra.specs.scaling_profile import ScalingProfile
    from tf_libra.step_comparison import compare_steps
    from tf_libra.uneven_data import join

    __version__: str

__all__ = [
    "BackwardProfile",
    "BurstPlan",
    "Cluster",
    "ContentionModel",
    "Faults",
    "GradientTensor",
    "LayerGraph",
    "Optimized",
    "OverlapSample",
    "PipelinePlan",
    "Plan",
    "ProcessorModel",
    "ScalingProfile",
    "TensorGroup",
    "Tuning",
    "__version__",
    "background",
    "boundary",
    "bursts",
    "collectives",
    "compare_steps",
    "cost_model_from_json",
    "elastic",
    "join",
    "keras",
    "local_rank",
    "local_size",
    "make_burst_plan",
    "make_pipeline_plan",
    "make_plan",
    "nccl",
    "optimize",
    "pipelines",
    "planning",
    "rank",
    "simulate",
    "simulate_pipeline",
    "size",
    "strategies",
]

_MODULES = (
    "bursts",
    "collectives",
    "elastic",
    "keras",
    "nccl",
    "pipelines",
    "planning",
    "strategies",
)

_HOME = {
    "BackwardProfile": "tf_libra.specs.backward_profile",
    "BurstPlan": "tf_libra.specs.burst",
    "Cluster": "tf_libra.specs.cluster",
    "ContentionModel": "tf_libra.cost_model",
    "Faults": "tf_libra.config",
    "GradientTensor": "tf_libra.specs.backward_profile",
    "LayerGraph": "tf_libra.specs.layer_graph",
    "Optimized": "tf_libra.decorator",
    "OverlapSample": "tf_libra.cost_model",
    "PipelinePlan": "tf_libra.specs.pipeline",
    "Plan": "tf_libra.specs.plan",
    "ProcessorModel": "tf_libra.cost_model",
    "ScalingProfile": "tf_libra.specs.scaling_profile",
    "TensorGroup": "tf_libra.specs.plan",
    "Tuning": "tf_libra.config",
    "background": "tf_libra.background_jobs.manager",
    "boundary": "tf_libra.model_parallel.capture.trace_hooks",
    "compare_steps": "tf_libra.step_comparison",
    "cost_model_from_json": "tf_libra.cost_model",
    "join": "tf_libra.uneven_data",
    "local_rank": "tf_libra.ranks",
    "local_size": "tf_libra.ranks",
    "make_burst_plan": "tf_libra.model_parallel.planning.burst",
    "make_pipeline_plan": "tf_libra.model_parallel.planning.pipeline",
    "make_plan": "tf_libra.planning",
    "optimize": "tf_libra.decorator",
    "rank": "tf_libra.ranks",
    "simulate": "tf_libra.simulation",
    "simulate_pipeline": "tf_libra.model_parallel.simulation",
    "size": "tf_libra.ranks",
}


_from_home = _lazy_getattr(__name__, _HOME)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib import metadata  # takes longer to import than the rest of this module

        return metadata.version("tf-libra")
    if name in _MODULES:
        return importlib.import_module(f"tf_libra.{name}")
    return _from_home(name)


_worker.begin()


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
