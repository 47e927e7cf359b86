"""View of a pipeline."""

import dataclasses
from typing import Any

from tf_libra.model_parallel.reporting.pipeline_record import PipelineRecord
from tf_libra.model_parallel.simulation import pipeline_gantt
from tf_libra.model_parallel.simulation.pipeline import stage_seconds
from tf_libra.reporting.tensorboard.views import card_registry


@card_registry.register("pipelines", PipelineRecord)
def pipeline_view(record: PipelineRecord) -> dict[str, Any]:
    """Returns a pipeline: stages, and the predicted and measured activity of every rank.

    Each rank has its longest bubble.
    """
    plan, layers, cluster = record.plan, record.layers, record.cluster
    computes = [stage_seconds(layers, stage) for stage in plan.stages]
    return {
        "function": record.function,
        "step": record.step,
        "strategy": plan.strategy,
        "num_microbatches": plan.num_microbatches,
        "bottleneck": pipeline_gantt.bottleneck(layers, plan, cluster),
        "notes": list(plan.notes),
        "stages": [
            {
                "layers": pipeline_gantt.layers_of(plan, number),
                "ranks": list(stage.devices),
                "forward_seconds": computes[number][0],
                "backward_seconds": computes[number][1],
                "parameter_bytes": float(layers.parameter_bytes[stage.start : stage.stop].sum()),
            }
            for number, stage in enumerate(plan.stages)
        ],
        "charts": [
            {
                "title": picture.title,
                "seconds": picture.seconds,
                "bars": [dataclasses.asdict(bar) for bar in picture.bars],
                "ranks": [
                    {
                        "rank": one.device,
                        "idle_share": one.share,
                        "longest": None
                        if one.longest is None
                        else {"seconds": one.longest.seconds, "why": one.longest.why},
                    }
                    for one in pipeline_gantt.idle(plan, picture)
                ],
            }
            for picture in pipeline_gantt.pictures(
                layers, plan, cluster, (record.bars, record.seconds)
            )
        ],
    }
