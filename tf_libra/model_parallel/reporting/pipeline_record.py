"""Record of a pipeline: planned and executed."""

from dataclasses import dataclass
from typing import ClassVar

from tf_libra.internal.values import Count, NonNegative
from tf_libra.model_parallel.simulation.pipeline_gantt import Bar
from tf_libra.reporting.records import record_types
from tf_libra.reporting.records.record_types import RecordDocument, series_tag
from tf_libra.specs.cluster import Cluster
from tf_libra.specs.layer_graph import LayerGraph
from tf_libra.specs.pipeline import PipelinePlan


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
      ValueError: a field is out of its range; named.
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
