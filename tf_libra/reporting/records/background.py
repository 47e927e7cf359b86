"""Record of a background job's statistics."""

from dataclasses import dataclass
from typing import ClassVar

from tf_libra.internal import validation
from tf_libra.reporting.records import record_types
from tf_libra.reporting.records.record_types import decode, encode, field_values, set_field
from tf_libra.specs.telemetry import BackgroundStats


@record_types.register
@dataclass(frozen=True, kw_only=True)
class BackgroundRecord(BackgroundStats):
    """Statistics of one rank's background job so far.

    Attributes:
      function: name of the training function.
      rank: rank of the job.

    Raises:
      ValueError: a field is out of its range; named.
    """

    function: str
    rank: int

    KIND: ClassVar[str] = "background"

    def __post_init__(self) -> None:
        validation.text("function", self.function)
        validation.text("command", self.command)
        for field in ("rank", "step", "num_pauses"):
            set_field(self, field, validation.integer(field, getattr(self, field)))
        for field in ("max_slowdown", "share_of_steps", "seconds"):
            set_field(self, field, validation.real(field, getattr(self, field), minimum=0))
        if self.slowdown is not None:
            set_field(self, "slowdown", validation.real("slowdown", self.slowdown))
        if self.num_steps is not None:
            set_field(self, "num_steps", validation.integer("num_steps", self.num_steps))

    @property
    def tag(self) -> str:
        """Tag of the record's series of summaries."""
        return f"{self.function}/{self.KIND}"

    def to_json(self) -> str:
        """Returns the record as JSON text, which `from_json` reads back unchanged."""
        return encode(self.KIND, field_values(self))

    @classmethod
    def from_json(cls, document: str) -> "BackgroundRecord":
        """Reads a record from JSON text; a `ValueError` names the field that is wrong."""
        return cls(**decode(cls, document))
