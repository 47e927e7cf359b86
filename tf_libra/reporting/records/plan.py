"""Record of an activated plan."""

import platform
from dataclasses import dataclass
from importlib import metadata
from typing import Annotated, Any, ClassVar

from tf_libra.autotune import PlanSource, TuningResult
from tf_libra.internal import validation
from tf_libra.internal.values import Count, Int32Counts, field_names, one_of
from tf_libra.planning import data_parallel as strategies
from tf_libra.reporting.records import record_types
from tf_libra.reporting.records.record_types import RecordDocument, series_tag
from tf_libra.specs.plan import Plan

ORIGINS = tuple(origin.value for origin in PlanSource)


@record_types.register
@dataclass(frozen=True)
class PlanRecord(RecordDocument):
    """Activated plan with all of its inputs.

    Attributes:
      function: name of the training function.
      step: first step under the plan.
      origin: "made": tuned by this job; "kept": cached by an earlier job; "given": by the user.
      strategy: requested strategy; the plan's may differ.
      threads: R, the allowed numbers of communication threads.
      conclusion: the tuning result. Its fields are on the top level of the JSON document.
      versions: versions of the job, such as "TensorFlow 2.21.0".

    Raises:
      ValueError: a field is out of its range; named.
    """

    function: str
    step: Count
    origin: Annotated[str, one_of(ORIGINS)]
    strategy: strategies.Strategy
    threads: Int32Counts
    conclusion: TuningResult
    versions: tuple[str, ...] = ()

    KIND: ClassVar[str] = "plan"

    def __hash__(self) -> int:
        # Hashing all samples would take longer than the lookups that use the hash.
        return hash((self.function, self.step, self.plan.fingerprint))

    def _validate(self) -> None:
        strategies.resolve(self.strategy)
        if not self.threads:
            raise ValueError("threads must hold at least one number, got ()")

    @property
    def plan(self) -> Plan:
        """Activated plan."""
        return self.conclusion.plan

    @property
    def tag(self) -> str:
        """Tag of the record's series of summaries."""
        return self.tag_of(self.KIND)

    def tag_of(self, kind: str) -> str:
        """Returns the tag of another kind's records under the same plan."""
        return series_tag(self.function, kind, self.plan.fingerprint)

    def _to_fields(self) -> dict[str, Any]:
        fields = super()._to_fields()
        fields["strategy"] = {"name": self.strategy.name} | fields["strategy"]
        conclusion = fields.pop("conclusion")
        return fields | validation.without_header(TuningResult.FORMAT, 1, conclusion)

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> "PlanRecord":
        """Read what `to_document` returned; a `ValueError` names the field that is wrong."""
        value = validation.without_header(cls.FORMAT, cls.VERSION, document)
        # Earlier versions stored steps of another phase there, which are not comparable.
        value.pop("baseline_seconds", None)
        required, optional = field_names(cls)
        required.remove("conclusion")
        own = {name: value.pop(name) for name in (*required, *optional) if name in value}
        validation.keys(cls.FORMAT, own, required, optional)
        own["strategy"] = _strategy(own["strategy"])
        return cls(**own, conclusion=TuningResult.from_fields("conclusion", value))


def _strategy(value: Any) -> strategies.Strategy:
    if not isinstance(value, dict) or value.get("name") not in strategies.BY_NAME:
        raise ValueError(
            f"strategy: name must be one of {', '.join(strategies.BY_NAME)}, got {value!r:.80}"
        )
    kind = strategies.BY_NAME[value["name"]]
    required, optional = field_names(kind)
    validation.keys("strategy", value, ("name",), (*required, *optional))
    try:
        return kind(**{name: field for name, field in value.items() if name != "name"})
    except ValueError as error:
        raise ValueError(f"strategy: {error}") from None


_PACKAGES = (
    ("tf-libra", "TF-Libra"),
    ("tensorflow", "TensorFlow"),
    ("tensorflow-cpu", "TensorFlow"),
    ("keras", "Keras"),
    ("horovod", "Horovod"),
)


def versions() -> tuple[str, ...]:
    """Returns the versions of Python and of the installed relevant packages."""
    found = {"Python": platform.python_version()}
    for package, name in _PACKAGES:
        try:
            found.setdefault(name, metadata.version(package))
        except metadata.PackageNotFoundError:
            continue
    return tuple(f"{name} {version}" for name, version in found.items())
