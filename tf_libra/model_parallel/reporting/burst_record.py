"""Record of a burst plan: planned and executed."""

from dataclasses import dataclass
from typing import ClassVar

from tf_libra.internal.values import Count, NonNegative
from tf_libra.model_parallel.simulation.pipeline_gantt import Bar
from tf_libra.reporting.records import record_types
from tf_libra.reporting.records.record_types import RecordDocument, series_tag
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
      ValueError: a field is out of its range; named.
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
