"""Record of the families of strategies under which a step was tried."""

from dataclasses import dataclass
from typing import Any, ClassVar

from tf_libra.internal.values import Count
from tf_libra.planning.family_comparison import FamilyComparison
from tf_libra.reporting.records import record_types
from tf_libra.reporting.records.record_types import RecordDocument
from tf_libra.reporting.tensorboard.views import card_registry


@record_types.register
@dataclass(frozen=True)
class FamilyRecord(RecordDocument):
    """Families of strategies side by side, once one of them goes on.

    Attributes:
      function: name of the training function.
      step: number of steps that trials have taken.
      families: the families.
    """

    function: str
    step: Count
    families: FamilyComparison

    KIND: ClassVar[str] = "families"

    @property
    def tag(self) -> str:
        """Tag of the record's series of summaries, the last of which counts."""
        return f"{self.function}/{self.KIND}"


@card_registry.register("families", FamilyRecord)
def families_view(record: FamilyRecord) -> dict[str, Any]:
    """Return families as JSON values: the comparison with one worker, and a row for each."""
    families = record.families
    return {
        "function": record.function,
        "step": record.step,
        "active": families.active,
        "compared": "" if families.one_worker is None else families.one_worker.describe(),
        "rows": [
            {
                "name": row.name,
                "predicted_seconds": row.predicted_seconds,
                "is_bound": row.is_bound,
                "measured_seconds": row.measured_seconds,
                "left_out": row.left_out,
            }
            for row in families.rows
        ],
    }
