"""Record of a burst plan: planned and executed."""

import dataclasses
import json
from dataclasses import dataclass
from typing import ClassVar

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
from tf_libra.specs.burst import BurstPlan
from tf_libra.specs.scaling_profile import ScalingProfile


@record_types.register
@dataclass(frozen=True)
class BurstRecord:
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
    step: int
    plan: BurstPlan
    bars: tuple[Bar, ...]
    seconds: float
    profile: ScalingProfile | None = None

    KIND: ClassVar[str] = "burst"

    def __post_init__(self) -> None:
        validation.text("function", self.function)
        set_field(self, "step", validation.integer("step", self.step, minimum=1))
        validation.instance("plan", self.plan, BurstPlan)
        set_field(self, "bars", validation.items("bars", self.bars, Bar))
        set_field(self, "seconds", validation.real("seconds", self.seconds, minimum=0))
        if self.profile is not None:
            validation.instance("profile", self.profile, ScalingProfile)
            if self.profile.names != self.plan.layer_names:
                raise ValueError("profile must be of the layers of the plan, got one of others")

    @property
    def tag(self) -> str:
        """Tag of the record's series of summaries."""
        return series_tag(self.function, self.KIND, self.plan.fingerprint)

    def to_json(self) -> str:
        """Returns the record as JSON text, which `from_json` reads back unchanged."""
        profile = None if self.profile is None else json.loads(self.profile.to_json())
        document = field_values(self) | {
            "plan": json.loads(self.plan.to_json()),
            "bars": [dataclasses.asdict(one) for one in self.bars],
            "profile": profile,
        }
        return encode(self.KIND, document)

    @classmethod
    def from_json(cls, document: str) -> "BurstRecord":
        """Reads a record from JSON text; a `ValueError` names the field that is wrong."""
        value = decode(cls, document)
        value["plan"] = BurstPlan.from_json(json.dumps(value["plan"]))
        if value.get("profile") is not None:
            value["profile"] = ScalingProfile.from_json(json.dumps(value["profile"]))
        return cls(**value)
