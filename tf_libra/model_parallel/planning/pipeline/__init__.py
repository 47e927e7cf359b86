"""Planners of pipelines, which choose stages, devices and the order of microbatches.

Importing the package registers its planners.
"""

from tf_libra.model_parallel.planning.pipeline.baselines import (
    DataParallel,
    GPipe,
    HetPipe,
    PipeDream,
)
from tf_libra.model_parallel.planning.pipeline.planner import (
    make_pipeline_plan,
    make_pipeline_plans,
)
from tf_libra.model_parallel.planning.pipeline.spp import Spp
from tf_libra.model_parallel.planning.pipeline.strategy import (
    BY_NAME,
    REGISTRY,
    PipelineDraft,
    PipelineStrategy,
    PipelineStrategyBase,
    candidate_microbatches,
    most_microbatches,
    possible_microbatches,
    register,
    resolve,
)

__all__ = [
    "BY_NAME",
    "REGISTRY",
    "DataParallel",
    "GPipe",
    "HetPipe",
    "PipeDream",
    "PipelineDraft",
    "PipelineStrategy",
    "PipelineStrategyBase",
    "Spp",
    "candidate_microbatches",
    "make_pipeline_plan",
    "make_pipeline_plans",
    "most_microbatches",
    "possible_microbatches",
    "register",
    "resolve",
]
