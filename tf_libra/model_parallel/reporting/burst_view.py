"""View of a burst plan."""

import dataclasses
import math
from typing import Any

from tf_libra.model_parallel.reporting.burst_record import BurstRecord
from tf_libra.model_parallel.simulation import burst_gantt
from tf_libra.reporting.tensorboard.views import card_registry


@card_registry.register("bursts", BurstRecord)
def burst_view(record: BurstRecord) -> dict[str, Any]:
    """Returns a burst plan: the ranks of each layer and the activity of every rank.

    `measured` is a layer's computation on each of `device_counts` ranks; None for a user-provided
    plan. An infinite amplification is None.
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
