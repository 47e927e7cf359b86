"""A pipeline, as it was planned and as it ran."""

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, ClassVar

from tf_libra import checks
from tf_libra.model.cluster import Cluster
from tf_libra.model.layers import LayerGraph
from tf_libra.model.pipeline import PipelinePlan
from tf_libra.records import kinds
from tf_libra.records.document import fields, read, series_tag, set_field, written
from tf_libra.simulation.pipeline_gantt import Bar


@kinds.register
@dataclass(frozen=True)
class PipelineRecord:
    """A pipeline, what it was planned of, and what its ranks did when in one iteration.

    Attributes:
      function: name of the training function.
      step: the last step that was measured.
      plan: the pipeline.
      layers: as they were measured.
      cluster: likewise.
      bars: what every rank computed, in seconds since the iteration's start.
      seconds: until the last rank had ended its step.

    Raises:
      ValueError: a field is out of its range; named.
    """

    function: str
    step: int
    plan: PipelinePlan
    layers: LayerGraph
    cluster: Cluster
    bars: tuple[Bar, ...]
    seconds: float

    KIND: ClassVar[str] = "pipeline"

    def __post_init__(self) -> None:
        checks.text("function", self.function)
        set_field(self, "step", checks.integer("step", self.step, minimum=1))
        for field, kind in _OF_PIPELINES.items():
            checks.instance(field, getattr(self, field), kind)
        set_field(self, "bars", checks.items("bars", self.bars, Bar))
        set_field(self, "seconds", checks.real("seconds", self.seconds, minimum=0))

    @property
    def tag(self) -> str:
        """The name of the series of summaries that the record belongs to."""
        return series_tag(self.function, self.KIND, self.plan.fingerprint)

    def to_json(self) -> str:
        """Returns the record as JSON text; `from_json` reads it back unchanged."""
        document = fields(self) | {"bars": [dataclasses.asdict(one) for one in self.bars]}
        document |= {field: json.loads(getattr(self, field).to_json()) for field in _OF_PIPELINES}
        return written(self.KIND, document)

    @classmethod
    def from_json(cls, document: str) -> "PipelineRecord":
        """Reads a record from JSON text; `ValueError` names what is wrong with it."""
        value = read(cls, document)
        for field, kind in _OF_PIPELINES.items():
            value[field] = kind.from_json(json.dumps(value[field]))
        return cls(**value)


_OF_PIPELINES: dict[str, Any] = {"plan": PipelinePlan, "layers": LayerGraph, "cluster": Cluster}
