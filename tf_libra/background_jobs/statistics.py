"""Statistics of a background job, their record in the log directory, and their view."""

from dataclasses import dataclass
from typing import Any, ClassVar

from tf_libra.internal.values import Natural, NonNegative, Value
from tf_libra.reporting.records import record_types
from tf_libra.reporting.records.record_types import RecordDocument
from tf_libra.reporting.tensorboard.views import card_registry


@dataclass(frozen=True)
class BackgroundStats(Value):
    """Run time and cost of a background job so far.

    Attributes:
        step: number of settled training steps since the job began.
        command: command line of the job.
        max_slowdown: limit on the mean slowdown of training steps, as a share.
        slowdown: measured mean slowdown of steps that overlap the job, as a share; None if unknown.
        share_of_steps: share of the settled steps that the job overlapped.
        num_pauses: number of pauses.
        seconds: seconds since the job began.
        num_steps: steps of the job itself; None if it does not count them.
    """

    step: Natural
    command: str
    max_slowdown: NonNegative
    slowdown: float | None
    share_of_steps: NonNegative
    num_pauses: Natural
    seconds: NonNegative
    num_steps: Natural | None = None


@record_types.register
@dataclass(frozen=True, kw_only=True)
class BackgroundRecord(BackgroundStats, RecordDocument):
    """Statistics of one rank's background job so far.

    Attributes:
      function: name of the training function.
      rank: rank of the job.

    Raises:
      ValueError: a field is out of its range.
    """

    function: str
    rank: Natural

    KIND: ClassVar[str] = "background"

    @property
    def tag(self) -> str:
        """Tag of the record's series of summaries."""
        return f"{self.function}/{self.KIND}"


@card_registry.register("backgrounds", BackgroundRecord)
def background_view(record: BackgroundRecord) -> dict[str, Any]:
    """Return a record's statistics as JSON values; steps per second are None if uncounted."""
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
