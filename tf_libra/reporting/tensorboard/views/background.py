"""View of a background job."""

from typing import Any

from tf_libra.reporting.records.background import BackgroundRecord
from tf_libra.reporting.tensorboard.views import card_registry


@card_registry.register("backgrounds", BackgroundRecord)
def background_view(record: BackgroundRecord) -> dict[str, Any]:
    """Returns the statistics of a background job; steps per second are None if uncounted."""
    rate = None
    if record.num_steps is not None and record.seconds > 0:
        rate = record.num_steps / record.seconds
    return {
        "function": record.function,
        "rank": record.rank,
        "step": record.step,
        "command": record.command,
        "max_slowdown": record.max_slowdown,
        "slowdown": record.slowdown,
        "share_of_steps": record.share_of_steps,
        "num_pauses": record.num_pauses,
        "num_steps": record.num_steps,
        "steps_per_second": rate,
    }
