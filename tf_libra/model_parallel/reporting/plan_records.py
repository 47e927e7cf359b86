"""Records of pipelines and bursts, planned and executed, and their cards."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, ClassVar

from tf_libra.internal.values import Count, NonNegative
from tf_libra.model_parallel.simulation import burst_gantt, pipeline_gantt
from tf_libra.model_parallel.simulation.pipeline import stage_seconds
from tf_libra.model_parallel.simulation.pipeline_gantt import Bar
from tf_libra.reporting.records import record_types
from tf_libra.reporting.records.record_types import RecordDocument, series_tag
from tf_libra.reporting.tensorboard.views import card_registry
from tf_libra.specs.burst import BurstPlan
from tf_libra.specs.cluster import Cluster
from tf_libra.specs.layer_graph import LayerGraph
from tf_libra.specs.pipeline import PipelinePlan
from tf_libra.specs.scaling_profile import ScalingProfile


@record_types.register
@dataclass(frozen=True)
class PipelineRecord(RecordDocument):
    """Pipeline plan with its layer graph and the activity of its ranks in one iteration.

    Attributes:
      function: name of the training function.
      step: last measured step.
      plan: the pipeline plan.
      layers: measured layers.
      cluster: measured link rates.
      bars: activities of every rank, in seconds since the iteration's start.
      seconds: seconds until the last rank ended its step.

    Raises:
      ValueError: a field is out of its range.
    """

    function: str
    step: Count
    plan: PipelinePlan
    layers: LayerGraph
    cluster: Cluster
    bars: tuple[Bar, ...]
    seconds: NonNegative

    KIND: ClassVar[str] = "pipeline"

    @property
    def tag(self) -> str:
        """Tag of the record's series of summaries."""
        return series_tag(self.function, self.KIND, self.plan.fingerprint)


@card_registry.register("pipelines", PipelineRecord)
def pipeline_view(record: PipelineRecord) -> dict[str, Any]:
    """Return a pipeline as JSON values: stages, and predicted and measured activity of every rank.

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
                        "rank": entry.device,
                        "idle_share": entry.share,
                        "longest": None
                        if entry.longest is None
                        else {"seconds": entry.longest.seconds, "why": entry.longest.why},
                    }
                    for entry in pipeline_gantt.idle(plan, picture)
                ],
            }
            for picture in pipeline_gantt.pictures(
                layers, plan, cluster, (record.bars, record.seconds)
            )
        ],
    }


@record_types.register
@dataclass(frozen=True)
class BurstRecord(RecordDocument):
    """Burst plan with its profile and the activity of its ranks in one iteration.

    Attributes:
      function: name of the training function.
      step: last measured step.
      plan: the burst plan.
      bars: activities of every rank, in seconds since the iteration's start; a stage is a sequence
        of layers on the same ranks.
      seconds: seconds until the last rank ended its step.
      profile: measured layers; None for a user-provided plan.

    Raises:
      ValueError: a field is out of its range.
    """

    function: str
    step: Count
    plan: BurstPlan
    bars: tuple[Bar, ...]
    seconds: NonNegative
    profile: ScalingProfile | None = None

    KIND: ClassVar[str] = "burst"

    def _validate(self) -> None:
        if self.profile is not None and self.profile.names != self.plan.layer_names:
            raise ValueError("profile must be of the layers of the plan, got one of others")

    @property
    def tag(self) -> str:
        """Tag of the record's series of summaries."""
        return series_tag(self.function, self.KIND, self.plan.fingerprint)


@card_registry.register("bursts", BurstRecord)
def burst_view(record: BurstRecord) -> dict[str, Any]:
    """Return a burst plan as JSON values: ranks of each layer and activity of every rank.

    `measured` holds a layer's compute seconds on each of `device_counts` ranks; None for a
    user-provided plan. An infinite amplification is None.
    """
    plan, profile = record.plan, record.profile
    return {
        "function": record.function,
        "step": record.step,
        "strategy": plan.strategy,
        "max_amplification": plan.max_amplification,
        "predicted_seconds": plan.iteration_seconds,
        "device_seconds": plan.device_seconds,
        "measured_seconds": record.seconds,
        "device_counts": list(plan.device_counts),
        "notes": list(plan.notes),
        "layers": [
            dataclasses.asdict(layer)
            | {
                "amplification": _finite(layer.amplification),
                "measured": None if profile is None else profile.compute_seconds[index].tolist(),
            }
            for index, layer in enumerate(burst_gantt.layers_of(plan))
        ],
        "charts": [
            {
                "title": picture.title,
                "seconds": picture.seconds,
                "bars": [dataclasses.asdict(bar) for bar in picture.bars],
                "idle_seconds": list(picture.idle_seconds),
            }
            for picture in burst_gantt.pictures(plan, (record.bars, record.seconds))
        ],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
