"""Planning and simulation of pipelines; `tf_libra.strategies` has the planners."""

from typing import TYPE_CHECKING

from tf_libra.internal.lazy_names import lazy_getattr

if TYPE_CHECKING:
    from tf_libra.model_parallel.capture.trace_hooks import boundary
    from tf_libra.model_parallel.planning.pipeline import make_pipeline_plan
    from tf_libra.model_parallel.simulation import (
        PipelineBlock,
        PipelineTimeline,
        simulate_pipeline,
    )
    from tf_libra.specs.cluster import Cluster
    from tf_libra.specs.layer_graph import LayerGraph
    from tf_libra.specs.pipeline import PipelinePlan, PipelineStage

__all__ = [
    "Cluster",
    "LayerGraph",
    "PipelineBlock",
    "PipelinePlan",
    "PipelineStage",
    "PipelineTimeline",
    "boundary",
    "make_pipeline_plan",
    "simulate_pipeline",
]

__getattr__ = lazy_getattr(
    __name__,
    {
        "Cluster": "tf_libra.specs.cluster",
        "LayerGraph": "tf_libra.specs.layer_graph",
        "PipelineBlock": "tf_libra.model_parallel.simulation",
        "PipelinePlan": "tf_libra.specs.pipeline",
        "PipelineStage": "tf_libra.specs.pipeline",
        "PipelineTimeline": "tf_libra.model_parallel.simulation",
        "boundary": "tf_libra.model_parallel.capture.trace_hooks",
        "make_pipeline_plan": "tf_libra.model_parallel.planning.pipeline",
        "simulate_pipeline": "tf_libra.model_parallel.simulation",
    },
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
