"""What is kept of a training run to be shown later: facts alone, each a versioned JSON document.

Whatever follows from them, such as a predicted timeline or what half the threads would cost, is
computed where it is shown (`tf_libra.tensorboard.views`), so that writing costs next to nothing.
"""

import dataclasses
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from tf_libra import checks, strategies
from tf_libra.cost_model import ContentionModel, OverlapSample
from tf_libra.model.plan import Plan
from tf_libra.model.profile import BackwardProfile
from tf_libra.planning.strategy import check_threads

if TYPE_CHECKING:
    from tf_libra.model.telemetry import AllReduceRecord
    from tf_libra.profiling.backward import StepProduction
    from tf_libra.profiling.samples import MeasuredTimeline
    from tf_libra.tuning import Tuned

VERSION = 1
_T = TypeVar("_T")
PLUGIN_NAME = "libra"
HISTORY_KIND = "history"
_SUMMARY = "tf-libra summary"
_TAG_DIGITS = 12
# How a plan came into force.
MADE, KEPT, GIVEN = "made", "kept", "given"
ORIGINS = (MADE, KEPT, GIVEN)

# What is written per step, as scalars in seconds: steps as usual; steps that were a plan's first
# or traced; and of traced steps, what LIBRA's Eq. 7 sums up and what of it is communication alone.
STEP_SECONDS = "step_seconds"
DISTURBED_STEP_SECONDS = "disturbed_step_seconds"
BACKWARD_SECONDS = "backward_seconds"
RESIDUAL_SECONDS = "residual_communication_seconds"
HISTORY = (STEP_SECONDS, DISTURBED_STEP_SECONDS, BACKWARD_SECONDS, RESIDUAL_SECONDS)


@dataclass(frozen=True)
class PlanRecord:
    """A plan that came into force, and all that it rests on.

    Attributes:
      function: name of the training function.
      step: the first step under the plan.
      origin: "made" by this job, "kept" from an earlier one, or "given" by the user.
      plan: the plan.
      strategy: what the user asked for, which may not be what made the plan.
      threads: R, the allowed numbers of communication threads.
      profile: measured backward computation; None where none was measured.
      cost_model: fitted contention model; None where there is none.
      samples: what the model was fitted to.
      median_error: median relative error of an all-reduce over the samples; None without a fit.
      held_out_error: median relative error of predicted backward time over plans that the fit has
        not seen; None without such plans.
      baseline_seconds: whole steps under one all-reduce after backward, on `threads[0]`.
      notes: what a reader should know of how the model and the plan were made.

    Raises:
      ValueError: a field is out of its range; named.
    """

    function: str
    step: int
    origin: str
    plan: Plan
    strategy: strategies.Strategy
    threads: tuple[int, ...]
    profile: BackwardProfile | None = None
    cost_model: ContentionModel | None = None
    samples: tuple[OverlapSample, ...] = ()
    median_error: float | None = None
    held_out_error: float | None = None
    baseline_seconds: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()

    KIND: ClassVar[str] = "plan"

    def __post_init__(self) -> None:
        checks.text("function", self.function)
        _set(self, "step", checks.integer("step", self.step, minimum=1))
        if self.origin not in ORIGINS:
            raise ValueError(f"origin must be one of {', '.join(ORIGINS)}, got {self.origin!r}")
        _check_type("plan", self.plan, Plan)
        strategies.resolve(self.strategy)
        threads = checks.sequence("threads", self.threads)
        _set(self, "threads", tuple(check_threads("threads", r) for r in threads))
        if not self.threads:
            raise ValueError("threads must hold at least one number, got ()")
        if self.profile is not None:
            _check_type("profile", self.profile, BackwardProfile)
        if self.cost_model is not None:
            _check_type("cost_model", self.cost_model, ContentionModel)
        _set(self, "samples", checks.sequence("samples", self.samples))
        for sample in self.samples:
            _check_type("samples", sample, OverlapSample)
        for field in ("median_error", "held_out_error"):
            _set(self, field, _optional_seconds(field, getattr(self, field)))
        _set(self, "baseline_seconds", _numbers("baseline_seconds", self.baseline_seconds))
        notes = checks.sequence("notes", self.notes)
        _set(self, "notes", tuple(checks.text("notes", note) for note in notes))

    @classmethod
    def of(
        cls,
        function: str,
        step: int,
        origin: str,
        plan: Plan,
        strategy: strategies.Strategy,
        profile: BackwardProfile | None,
        cost_model: ContentionModel | None,
        tuned: "Tuned | None",
        baseline_seconds: Sequence[float],
    ) -> "PlanRecord":
        """The record of a plan that comes into force; `tuned` where this job has made it."""
        return cls(
            function=function,
            step=step,
            origin=origin,
            plan=plan,
            strategy=strategy,
            threads=strategy.allowed_threads,
            profile=profile,
            cost_model=cost_model,
            samples=() if tuned is None else tuned.samples,
            median_error=None if tuned is None or tuned.fit is None else tuned.fit.median_error,
            held_out_error=None if tuned is None else tuned.held_out_error,
            baseline_seconds=tuple(baseline_seconds),
            notes=() if tuned is None else tuned.notes,
        )

    @property
    def tag(self) -> str:
        """The name of the series of summaries that the record belongs to."""
        return self.tag_of(self.KIND)

    def tag_of(self, kind: str) -> str:
        """The tag of another kind's records under the same plan."""
        return _tag(self.function, kind, self.plan.fingerprint)

    def to_json(self) -> str:
        """Returns the record as JSON text; `from_json` reads it back unchanged."""
        document = _fields(self) | {
            "plan": json.loads(self.plan.to_json()),
            "strategy": {"name": self.strategy.name} | dataclasses.asdict(self.strategy),
            "profile": None if self.profile is None else json.loads(self.profile.to_json()),
            "cost_model": (
                None if self.cost_model is None else json.loads(self.cost_model.to_json())
            ),
            "samples": [dataclasses.asdict(sample) for sample in self.samples],
        }
        return _written(self.KIND, document)

    @classmethod
    def from_json(cls, document: str) -> "PlanRecord":
        """Reads a record from JSON text; `ValueError` names what is wrong with it."""
        value = _read(cls, document)
        value["plan"] = Plan.from_json(json.dumps(value["plan"]))
        value["strategy"] = _strategy(value["strategy"])
        for field, kind in (("profile", BackwardProfile), ("cost_model", ContentionModel)):
            if value.get(field) is not None:
                value[field] = kind.from_json(json.dumps(value[field]))
        value["samples"] = _items("samples", value.get("samples", ()), OverlapSample)
        return cls(**value)


@dataclass(frozen=True)
class Spread:
    """A quantity over several steps: median and quartiles, in seconds."""

    low: float
    median: float
    high: float

    def __post_init__(self) -> None:
        for field in ("low", "median", "high"):
            _set(self, field, checks.real(field, getattr(self, field)))
        if not self.low <= self.median <= self.high:
            raise ValueError(
                "low, median and high must ascend, got "
                f"{self.low!r}, {self.median!r}, {self.high!r}"
            )

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of at least one value."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(low, median, high)


@dataclass(frozen=True)
class SpanRecord:
    """One group's all-reduce over several steps; seconds since the start of backward.

    Attributes:
      group: index in the plan.
      num_threads: communication threads it ran on.
      num_bytes: its size.
      ready: when its last tensor was produced.
      start: when it started.
      end: when it ended.
    """

    group: int
    num_threads: int
    num_bytes: int
    ready: Spread
    start: Spread
    end: Spread

    def __post_init__(self) -> None:
        _set(self, "group", checks.integer("group", self.group))
        _set(self, "num_threads", check_threads("num_threads", self.num_threads))
        _set(self, "num_bytes", checks.integer("num_bytes", self.num_bytes))
        for field in ("ready", "start", "end"):
            _set(self, field, _spread(field, getattr(self, field)))


@dataclass(frozen=True)
class TimelineRecord:
    """What the steps under a plan did so far, as far as they were traced.

    Attributes:
      function: name of the training function.
      plan: the plan's fingerprint.
      step: the last step that counts.
      num_steps: how many steps count, at least 1.
      spans: one per executed all-reduce, in order of start. A group that could not be merged as
        planned has several.
      compute: from the start of backward to the last gradient's production.
      backward: from the start of backward to its end, communication included.

    Raises:
      ValueError: a field is out of its range; named.
    """

    function: str
    plan: str
    step: int
    num_steps: int
    spans: tuple[SpanRecord, ...]
    compute: Spread
    backward: Spread

    KIND: ClassVar[str] = "timeline"

    def __post_init__(self) -> None:
        checks.text("function", self.function)
        checks.text("plan", self.plan)
        _set(self, "step", checks.integer("step", self.step, minimum=1))
        _set(self, "num_steps", checks.integer("num_steps", self.num_steps, minimum=1))
        _set(self, "spans", _items("spans", self.spans, SpanRecord))
        for field in ("compute", "backward"):
            _set(self, field, _spread(field, getattr(self, field)))

    @classmethod
    def of(
        cls, function: str, plan: Plan, step: int, timelines: "Sequence[MeasuredTimeline]"
    ) -> "TimelineRecord":
        """Median and quartiles over at least one measured step.

        Steps that executed other all-reduces than most, such as one from before a graph was
        traced anew, do not count.
        """
        shapes = [tuple((g.group, g.num_threads, g.num_bytes) for g in t.groups) for t in timelines]
        usual = statistics.mode(shapes)
        counted = [t for t, shape in zip(timelines, shapes, strict=True) if shape == usual]
        spans = tuple(
            SpanRecord(
                *shape,
                ready=Spread.of([t.groups[i].ready_seconds for t in counted]),
                start=Spread.of([t.groups[i].start_seconds for t in counted]),
                end=Spread.of([t.groups[i].end_seconds for t in counted]),
            )
            for i, shape in enumerate(usual)
        )
        return cls(
            function=function,
            plan=plan.fingerprint,
            step=step,
            num_steps=len(counted),
            spans=spans,
            compute=Spread.of([t.compute_seconds for t in counted]),
            backward=Spread.of([t.backward_seconds for t in counted]),
        )

    @property
    def tag(self) -> str:
        """The name of the series of summaries that the record belongs to."""
        return _tag(self.function, self.KIND, self.plan)

    def to_json(self) -> str:
        """Returns the record as JSON text; `from_json` reads it back unchanged."""
        return _written(self.KIND, dataclasses.asdict(self))

    @classmethod
    def from_json(cls, document: str) -> "TimelineRecord":
        """Reads a record from JSON text; `ValueError` names what is wrong with it."""
        return cls(**_read(cls, document))


@dataclass(frozen=True)
class AllReduceSpan:
    """One executed all-reduce on one rank.

    Times are nanoseconds since the epoch by the clock of the rank's host.

    Attributes:
      group: index in the plan; -1 where no plan was applied.
      num_threads: communication threads it ran on.
      num_bytes: its size.
      enqueued_ns: when the op handed it to the engine.
      started_ns: when its first thread began.
      first_byte_ns: when every other rank had sent a first byte; before `started_ns` where none
        was awaited.
      finished_ns: when its last thread ended.
    """

    group: int
    num_threads: int
    num_bytes: int
    enqueued_ns: int
    started_ns: int
    first_byte_ns: int
    finished_ns: int

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            minimum = -1 if field.name == "group" else 0
            value = checks.integer(field.name, getattr(self, field.name), minimum)
            _set(self, field.name, value)


@dataclass(frozen=True)
class StepRecord:
    """One step under a plan on one rank, in nanoseconds since the epoch.

    Attributes:
      function: name of the training function.
      plan: the plan's fingerprint.
      rank: whose step it is.
      step: which.
      started_ns: when the step was called.
      finished_ns: when the call returned.
      all_reduces: in order of execution.
      backward_start_ns: when backward computation started; None where the step was not traced.
      produced_ns: when each of the plan's tensors was produced, in the plan's order; empty where
        the step was not traced.
      exchanges_ns: when this rank sent messages to all others before the step, and when all of
        theirs had come: pairs, the same number on every rank. For comparing clocks; mostly empty.

    Raises:
      ValueError: a field is out of its range; named.
    """

    function: str
    plan: str
    rank: int
    step: int
    started_ns: int
    finished_ns: int
    all_reduces: tuple[AllReduceSpan, ...]
    backward_start_ns: int | None = None
    produced_ns: tuple[int, ...] = ()
    exchanges_ns: tuple[tuple[int, int], ...] = ()

    KIND: ClassVar[str] = "step"

    def __post_init__(self) -> None:
        checks.text("function", self.function)
        checks.text("plan", self.plan)
        for field in ("rank", "step", "started_ns", "finished_ns"):
            _set(self, field, checks.integer(field, getattr(self, field)))
        _set(self, "all_reduces", _items("all_reduces", self.all_reduces, AllReduceSpan))
        if self.backward_start_ns is not None:
            start = checks.integer("backward_start_ns", self.backward_start_ns)
            _set(self, "backward_start_ns", start)
        produced = checks.sequence("produced_ns", self.produced_ns)
        _set(self, "produced_ns", tuple(checks.integer("produced_ns", at) for at in produced))
        pairs = []
        for pair in checks.sequence("exchanges_ns", self.exchanges_ns):
            times = tuple(checks.integer("exchanges_ns", at) for at in pair)
            if len(times) != 2:
                raise ValueError(f"exchanges_ns must hold pairs, got {len(times)} entries")
            pairs.append(times)
        _set(self, "exchanges_ns", tuple(pairs))

    @classmethod
    def of(
        cls,
        function: str,
        plan: Plan,
        rank: int,
        step: int,
        called_ns: tuple[int, int],
        records: "Sequence[AllReduceRecord]",
        production: "StepProduction | None",
    ) -> "StepRecord":
        """The record of an executed step; `production` where it was traced."""
        fields = [field.name for field in dataclasses.fields(AllReduceSpan)]
        backward_start_ns, produced_ns = None, ()
        if production is not None and set(plan.tensor_names) <= set(production.names):
            at = dict(zip(production.names, production.produced_ns.tolist(), strict=True))
            backward_start_ns = int(production.backward_start_ns)
            produced_ns = tuple(at[name] for name in plan.tensor_names)
        return cls(
            function=function,
            plan=plan.fingerprint,
            rank=rank,
            step=step,
            started_ns=called_ns[0],
            finished_ns=called_ns[1],
            all_reduces=tuple(
                AllReduceSpan(**{name: getattr(record, name) for name in fields})
                for record in sorted(records, key=lambda record: record.sequence)
            ),
            backward_start_ns=backward_start_ns,
            produced_ns=produced_ns,
        )

    @property
    def tag(self) -> str:
        """The name of the series of summaries that the record belongs to."""
        return _tag(self.function, self.KIND, self.plan)

    def to_json(self) -> str:
        """Returns the record as JSON text; `from_json` reads it back unchanged."""
        return _written(self.KIND, dataclasses.asdict(self))

    @classmethod
    def from_json(cls, document: str) -> "StepRecord":
        """Reads a record from JSON text; `ValueError` names what is wrong with it."""
        return cls(**_read(cls, document))


Record = PlanRecord | TimelineRecord | StepRecord
KINDS: dict[str, type[Record]] = {
    kind.KIND: kind for kind in (PlanRecord, TimelineRecord, StepRecord)
}


def plugin_content(kind: str) -> bytes:
    """What the plugin data of a summary says of it: one of `KINDS`, or `HISTORY_KIND`."""
    return json.dumps({"format": _SUMMARY, "version": VERSION, "kind": kind}).encode()


def kind_of(content: bytes) -> str:
    """Reads what `plugin_content` wrote.

    Raises:
      ValueError: malformed, of another version, or of an unknown kind.
    """
    value = checks.keys(
        _SUMMARY, checks.json_document(_SUMMARY, VERSION, content.decode("utf-8")), ("kind",)
    )
    kinds = (*KINDS, HISTORY_KIND)
    if value["kind"] not in kinds:
        raise ValueError(f"kind must be one of {', '.join(kinds)}, got {value['kind']!r:.80}")
    return str(value["kind"])


def _format(kind: str) -> str:
    return f"tf-libra {kind} record"


def _tag(function: str, kind: str, fingerprint: str) -> str:
    return f"{function}/{kind}/{fingerprint[:_TAG_DIGITS]}"


def _written(kind: str, document: dict[str, Any]) -> str:
    return json.dumps({"format": _format(kind), "version": VERSION} | document)


def _read(kind: type[Record], document: str) -> dict[str, Any]:
    required, optional = _names(kind)
    name = _format(kind.KIND)
    value = checks.json_document(name, VERSION, document)
    return dict(checks.keys(name, value, required, optional))


def _fields(record: Record) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}


def _set(record: Any, field: str, value: Any) -> None:
    object.__setattr__(record, field, value)


def _check_type(field: str, value: Any, kind: type) -> None:
    if not isinstance(value, kind):
        raise ValueError(f"{field} must be a {kind.__name__}, got {type(value).__name__}")


def _numbers(field: str, values: Any) -> tuple[float, ...]:
    return tuple(checks.real(field, value, minimum=0) for value in checks.sequence(field, values))


def _optional_seconds(field: str, value: Any) -> float | None:
    return None if value is None else checks.real(field, value, minimum=0)


def _spread(field: str, value: Any) -> Spread:
    if isinstance(value, Spread):
        return value
    return _built(field, value, Spread)


def _items(field: str, values: Any, kind: type[_T]) -> tuple[_T, ...]:
    return tuple(
        value if isinstance(value, kind) else _built(f"{field}[{index}]", value, kind)
        for index, value in enumerate(checks.sequence(field, values))
    )


def _names(kind: type) -> tuple[list[str], list[str]]:
    """Names of a dataclass's fields, those without a default apart from those with one."""
    required: list[str] = []
    optional: list[str] = []
    for field in dataclasses.fields(kind):
        (required if field.default is dataclasses.MISSING else optional).append(field.name)
    return required, optional


def _built(field: str, value: Any, kind: type[_T]) -> _T:
    checks.keys(field, value, *_names(kind))
    try:
        return kind(**value)
    except ValueError as error:
        raise ValueError(f"{field}: {error}") from None


def _strategy(value: Any) -> strategies.Strategy:
    if not isinstance(value, dict) or value.get("name") not in strategies.BY_NAME:
        raise ValueError(
            f"strategy: name must be one of {', '.join(strategies.BY_NAME)}, got {value!r:.80}"
        )
    kind = strategies.BY_NAME[value["name"]]
    required, optional = _names(kind)
    checks.keys("strategy", value, ("name",), (*required, *optional))
    try:
        return kind(**{name: given for name, given in value.items() if name != "name"})
    except ValueError as error:
        raise ValueError(f"strategy: {error}") from None
