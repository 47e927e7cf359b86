"""Record of a background job's statistics."""

from dataclasses import dataclass
from typing import ClassVar

from tf_libra.internal.values import Natural
from tf_libra.reporting.records import record_types
from tf_libra.reporting.records.record_types import RecordDocument
from tf_libra.specs.telemetry import BackgroundStats


@record_types.register
@dataclass(frozen=True, kw_only=True)
class BackgroundRecord(BackgroundStats, RecordDocument):
    """Statistics of one rank's background job so far.

    Attributes:
      function: name of the training function.
      rank: rank of the job.

    Raises:
      ValueError: a field is out of its range; named.
    """

    function: str
    rank: Natural

    KIND: ClassVar[str] = "background"

    @property
    def tag(self) -> str:
        """Tag of the record's series of summaries."""
        return f"{self.function}/{self.KIND}"
