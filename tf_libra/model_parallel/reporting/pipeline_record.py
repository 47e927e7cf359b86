"""Record of a pipeline: planned and executed."""

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, ClassVar

from tf_libra.internal import validation
from tf_libra.model_parallel.simulation.pipeline_gantt import Bar
from tf_libra.reporting.records import record_types
from tf_libra.reporting.records.record_types import (
    decode,
    encode,
    field_values,
    series_tag,
    set_field,
)
from tf_libra.specs.cluster import Cluster
from tf_libra.specs.layer_graph import LayerGraph
from tf_libra.specs.pipeline import PipelinePlan


@record_types.register
@dataclass(frozen=True)
class PipelineRecord:
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
        validation.text("function", self.function)
        set_field(self, "step", validation.integer("step", self.step, minimum=1))
        for field, kind in _OF_PIPELINES.items():
            validation.instance(field, getattr(self, field), kind)
        set_field(self, "bars", validation.items("bars", self.bars, Bar))
        set_field(self, "seconds", validation.real("seconds", self.seconds, minimum=0))

    @property
    def tag(self) -> str:
        """Tag of the record's series of summaries."""
        return series_tag(self.function, self.KIND, self.plan.fingerprint)

    def to_json(self) -> str:
        """Returns the record as JSON text, which `from_json` reads back unchanged."""
        document = field_values(self) | {"bars": [dataclasses.asdict(one) for one in self.bars]}
        document |= {field: json.loads(getattr(self, field).to_json()) for field in _OF_PIPELINES}
        return encode(self.KIND, document)

    @classmethod
    def from_json(cls, document: str) -> "PipelineRecord":
        """Reads a record from JSON text; a `ValueError` names the field that is wrong."""
        value = decode(cls, document)
        for field, kind in _OF_PIPELINES.items():
            value[field] = kind.from_json(json.dumps(value[field]))
        return cls(**value)


_OF_PIPELINES: dict[str, Any] = {"plan": PipelinePlan, "layers": LayerGraph, "cluster": Cluster}
