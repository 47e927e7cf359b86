"""A burst plan, as it was planned and as it ran."""

import dataclasses
import json
from dataclasses import dataclass
from typing import ClassVar

from tf_libra import checks
from tf_libra.model.burst import BurstPlan
from tf_libra.model.scaling import ScalingProfile
from tf_libra.records import kinds
from tf_libra.records.document import fields, read, series_tag, set_field, written
from tf_libra.simulation.pipeline_gantt import Bar


@kinds.register
@dataclass(frozen=True)
class BurstRecord:
    """A burst plan, what it was planned of, and what its ranks did when in one iteration.

    Attributes:
      function: name of the training function.
      step: the last step that was measured.
      plan: the bursts.
      bars: what every rank computed, in seconds since the iteration's start; its stages are layers
        that follow each other on the same ranks.
      seconds: until the last rank had ended its step.
      profile: the layers as they were measured; None of a plan that was given.

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
        checks.text("function", self.function)
        set_field(self, "step", checks.integer("step", self.step, minimum=1))
        checks.instance("plan", self.plan, BurstPlan)
        set_field(self, "bars", checks.items("bars", self.bars, Bar))
        set_field(self, "seconds", checks.real("seconds", self.seconds, minimum=0))
        if self.profile is not None:
            checks.instance("profile", self.profile, ScalingProfile)
            if self.profile.names != self.plan.layer_names:
                raise ValueError("profile must be of the layers of the plan, got one of others")

    @property
    def tag(self) -> str:
        """The name of the series of summaries that the record belongs to."""
        return series_tag(self.function, self.KIND, self.plan.fingerprint)

    def to_json(self) -> str:
        """Returns the record as JSON text; `from_json` reads it back unchanged."""
        profile = None if self.profile is None else json.loads(self.profile.to_json())
        document = fields(self) | {
            "plan": json.loads(self.plan.to_json()),
            "bars": [dataclasses.asdict(one) for one in self.bars],
            "profile": profile,
        }
        return written(self.KIND, document)

    @classmethod
    def from_json(cls, document: str) -> "BurstRecord":
        """Reads a record from JSON text; `ValueError` names what is wrong with it."""
        value = read(cls, document)
        value["plan"] = BurstPlan.from_json(json.dumps(value["plan"]))
        if value.get("profile") is not None:
            value["profile"] = ScalingProfile.from_json(json.dumps(value["profile"]))
        return cls(**value)
