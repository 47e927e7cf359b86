"""A plan that came into force."""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

from tf_libra import checks, strategies
from tf_libra.model.plan import Plan
from tf_libra.planning.strategy import check_threads
from tf_libra.records import kinds
from tf_libra.records.document import fields, format_of, series_tag, set_field, written
from tf_libra.records.kinds import VERSION
from tf_libra.tuning import Conclusion, Origin

ORIGINS = tuple(origin.value for origin in Origin)


@kinds.register
@dataclass(frozen=True)
class PlanRecord:
    """A plan that came into force, and all that it rests on.

    Attributes:
      function: name of the training function.
      step: the first step under the plan.
      origin: "made" by this job, "kept" from an earlier one, or "given" by the user.
      strategy: what the user asked for, which may not be what made the plan.
      threads: R, the allowed numbers of communication threads.
      conclusion: the plan, and what it rests on. Its fields stand beside the others in JSON.
      versions: what the job ran on, such as "TensorFlow 2.21.0".

    Raises:
      ValueError: a field is out of its range; named.
    """

    function: str
    step: int
    origin: str
    strategy: strategies.Strategy
    threads: tuple[int, ...]
    conclusion: Conclusion
    versions: tuple[str, ...] = ()

    KIND: ClassVar[str] = "plan"

    def __hash__(self) -> int:
        # That of all samples would take longer than what is looked up by it.
        return hash((self.function, self.step, self.plan.fingerprint))

    def __post_init__(self) -> None:
        checks.text("function", self.function)
        set_field(self, "step", checks.integer("step", self.step, minimum=1))
        if self.origin not in ORIGINS:
            raise ValueError(f"origin must be one of {', '.join(ORIGINS)}, got {self.origin!r}")
        strategies.resolve(self.strategy)
        threads = checks.sequence("threads", self.threads)
        set_field(self, "threads", tuple(check_threads("threads", r) for r in threads))
        if not self.threads:
            raise ValueError("threads must hold at least one number, got ()")
        checks.instance("conclusion", self.conclusion, Conclusion)
        set_field(self, "versions", checks.texts("versions", self.versions))

    @property
    def plan(self) -> Plan:
        """The plan."""
        return self.conclusion.plan

    @property
    def tag(self) -> str:
        """The name of the series of summaries that the record belongs to."""
        return self.tag_of(self.KIND)

    def tag_of(self, kind: str) -> str:
        """The tag of another kind's records under the same plan."""
        return series_tag(self.function, kind, self.plan.fingerprint)

    def to_json(self) -> str:
        """Returns the record as JSON text; `from_json` reads it back unchanged."""
        document = fields(self) | {
            "strategy": {"name": self.strategy.name} | dataclasses.asdict(self.strategy),
        }
        del document["conclusion"]
        return written(self.KIND, document | self.conclusion.to_document())

    @classmethod
    def from_json(cls, document: str) -> "PlanRecord":
        """Reads a record from JSON text; `ValueError` names what is wrong with it."""
        value = checks.json_document(format_of(cls.KIND), VERSION, document)
        # Earlier versions kept steps of another time there, which compare with nothing.
        value.pop("baseline_seconds", None)
        required, optional = checks.field_names(cls)
        required.remove("conclusion")
        own = {name: value.pop(name) for name in (*required, *optional) if name in value}
        checks.keys(format_of(cls.KIND), own, required, optional)
        own["strategy"] = _strategy(own["strategy"])
        return cls(**own, conclusion=Conclusion.from_document(value))


def _strategy(value: Any) -> strategies.Strategy:
    if not isinstance(value, dict) or value.get("name") not in strategies.BY_NAME:
        raise ValueError(
            f"strategy: name must be one of {', '.join(strategies.BY_NAME)}, got {value!r:.80}"
        )
    kind = strategies.BY_NAME[value["name"]]
    required, optional = checks.field_names(kind)
    checks.keys("strategy", value, ("name",), (*required, *optional))
    try:
        return kind(**{name: given for name, given in value.items() if name != "name"})
    except ValueError as error:
        raise ValueError(f"strategy: {error}") from None
