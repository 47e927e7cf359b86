"""Registration of pipelines, bursts and steps on one rank with the core."""

from collections.abc import Callable
from typing import Any

from tf_libra.cli.command import FAMILIES, Family
from tf_libra.model_parallel.planning import burst, one_rank, pipeline
from tf_libra.model_parallel.reporting import plan_records as plan_records
from tf_libra.model_parallel.runtime.staged_options import (
    BurstOptions,
    OneRankOptions,
    PipelineOptions,
)
from tf_libra.runtime.protocol import TrainingStep
from tf_libra.runtime.strategy_kinds import KINDS, Links, Prediction, StrategyKind
from tf_libra.specs.burst import BurstPlan
from tf_libra.specs.layer_graph import LayerGraph
from tf_libra.specs.one_rank import OneRankPlan
from tf_libra.specs.pipeline import PipelinePlan


def _make_pipeline_step(function: Callable[..., Any], options: PipelineOptions) -> TrainingStep:
    from tf_libra.model_parallel.runtime.candidate_step import CandidateTraining
    from tf_libra.model_parallel.runtime.pipeline_planner import PipelinePlanner

    def make_planner(plan: PipelinePlan | None = options.plan) -> PipelinePlanner:
        return PipelinePlanner(options.strategy, plan)

    return CandidateTraining(function, make_planner, options, options.strategy.release_variables)


def _make_burst_step(function: Callable[..., Any], options: BurstOptions) -> TrainingStep:
    from tf_libra.model_parallel.runtime.burst_planner import BurstPlanner
    from tf_libra.model_parallel.runtime.candidate_step import CandidateTraining

    def make_planner(plan: BurstPlan | None = options.plan) -> BurstPlanner:
        return BurstPlanner(options.strategy, plan)

    return CandidateTraining(function, make_planner, options)


def _make_one_rank_step(function: Callable[..., Any], options: OneRankOptions) -> TrainingStep:
    from tf_libra.model_parallel.runtime.candidate_step import CandidateTraining
    from tf_libra.model_parallel.runtime.one_rank_planner import OneRankPlanner

    def make_planner(plan: OneRankPlan | None = options.plan) -> OneRankPlanner:
        return OneRankPlanner(options.strategy, plan)

    return CandidateTraining(function, make_planner, options)


def _predict_pipeline(strategy: Any, layers: LayerGraph, links: Links, batch: int) -> Prediction:
    from tf_libra.model_parallel.planning.predictions import predict_pipeline

    return predict_pipeline(strategy, layers, links, batch)


def _predict_burst(strategy: Any, layers: LayerGraph, links: Links, batch: int) -> Prediction:
    from tf_libra.model_parallel.planning.predictions import predict_burst

    return Prediction(predict_burst(strategy, layers, links, batch))


def _pipeline_exchange_seconds(plan: PipelinePlan, layers: LayerGraph, links: Links) -> float:
    from tf_libra.model_parallel.planning.predictions import pipeline_exchange_seconds

    return pipeline_exchange_seconds(plan, layers, links)


def _burst_exchange_seconds(plan: BurstPlan, layers: LayerGraph, links: Links) -> float:
    from tf_libra.model_parallel.planning.predictions import burst_exchange_seconds

    return burst_exchange_seconds(plan, layers, links)


def _max_speedup_of_pipelines(num_ranks: int) -> float:
    """Return the speedup of two stages of equal work, which idle for one microbatch."""
    count = pipeline.most_microbatches(num_ranks)
    return num_ranks * count / (count + 1)


def _run_pipeline(arguments: list[str]) -> int:
    from tf_libra.model_parallel.commands import pipeline

    return pipeline.main(arguments)


def _run_burst(arguments: list[str]) -> int:
    from tf_libra.model_parallel.commands import burst

    return burst.main(arguments)


PIPELINES = StrategyKind(
    "pipelines",
    pipeline.REGISTRY,
    PipelineOptions,
    _make_pipeline_step,
    is_staged=True,
    joins_trials=True,
    max_speedup=_max_speedup_of_pipelines,
    predict=_predict_pipeline,
    exchange_seconds=_pipeline_exchange_seconds,
    plan_type=PipelinePlan,
    of_plans=pipeline.Spp(results="own"),
)
BURSTS = StrategyKind(
    "bursts",
    burst.REGISTRY,
    BurstOptions,
    _make_burst_step,
    is_staged=True,
    joins_trials=True,
    predict=_predict_burst,
    exchange_seconds=_burst_exchange_seconds,
    plan_type=BurstPlan,
    of_plans=burst.DeepPool(results="own"),
)
ONE_RANK = StrategyKind(
    "steps on one rank",
    one_rank.REGISTRY,
    OneRankOptions,
    _make_one_rank_step,
    is_staged=True,
    joins_trials=True,
    plan_type=OneRankPlan,
    of_plans=one_rank.OneRank(results="own"),
    trains_alone=True,
)
for kind in (PIPELINES, BURSTS, ONE_RANK):
    KINDS.add(kind.name, kind)
FAMILIES.add("burst", Family("plan, simulate and compare burst parallelism", _run_burst))
FAMILIES.add("pipeline", Family("plan, simulate and compare pipelines", _run_pipeline))
