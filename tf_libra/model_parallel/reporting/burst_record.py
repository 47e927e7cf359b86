"""Record of a burst plan: planned and executed."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, ClassVar

from tf_libra.internal.values import Count, NonNegative
from tf_libra.model_parallel.simulation import burst_gantt
from tf_libra.model_parallel.simulation.pipeline_gantt import Bar
from tf_libra.reporting.records import record_types
from tf_libra.reporting.records.record_types import RecordDocument, series_tag
from tf_libra.reporting.tensorboard.views import card_registry
from tf_libra.specs.burst import BurstPlan
from tf_libra.specs.scaling_profile import ScalingProfile


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
