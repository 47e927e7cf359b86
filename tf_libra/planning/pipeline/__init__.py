"""Planners of pipelines: stages, devices and the order of microbatches.

Importing the package registers its planners.
"""

from tf_libra.planning.pipeline.baselines import DataParallel, GPipe, HetPipe, PipeDream
from tf_libra.planning.pipeline.planner import make_pipeline_plan, make_pipeline_plans
from tf_libra.planning.pipeline.spp import Spp
from tf_libra.planning.pipeline.strategy import (
    BY_NAME,
    Microbatches,
    PipelineDraft,
    PipelineStrategy,
    find,
    register,
    resolve,
)

__all__ = [
    "BY_NAME",
    "DataParallel",
    "GPipe",
    "HetPipe",
    "Microbatches",
    "PipeDream",
    "PipelineDraft",
    "PipelineStrategy",
    "Spp",
    "find",
    "make_pipeline_plan",
    "make_pipeline_plans",
    "register",
    "resolve",
]
