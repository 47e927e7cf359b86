"""What is kept of a training run to be shown later: facts alone, each a versioned JSON document.

Whatever follows from them, such as a predicted timeline or what half the threads would cost, is
computed where it is shown (`tf_libra.tensorboard.views`), so that writing costs next to nothing.
"""

import dataclasses
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tf_libra import checks, strategies
from tf_libra.model.background import Got
from tf_libra.model.burst import BurstPlan
from tf_libra.model.cluster import Cluster
from tf_libra.model.layers import LayerGraph
from tf_libra.model.pipeline import PipelinePlan
from tf_libra.model.plan import Plan
from tf_libra.model.scaling import ScalingProfile
from tf_libra.planning.strategy import check_threads
from tf_libra.profiling.samples import MeasuredGroup, MeasuredTimeline
from tf_libra.simulation.pipeline_gantt import Bar
from tf_libra.tuning import Conclusion, Origin

if TYPE_CHECKING:
    from tf_libra.model.telemetry import AllReduceRecord
    from tf_libra.profiling.backward import StepProduction

VERSION = 1
PLUGIN_NAME = "libra"
HISTORY_KIND = "history"
_SUMMARY = "tf-libra summary"
_TAG_DIGITS = 12
ORIGINS = tuple(origin.value for origin in Origin)

# What is written per step, as scalars in seconds: steps as usual; steps that were a plan's first
# or traced; and of traced steps, what LIBRA's Eq. 7 sums up and what of it is communication alone.
STEP_SECONDS = "step_seconds"
DISTURBED_STEP_SECONDS = "disturbed_step_seconds"
BACKWARD_SECONDS = "backward_seconds"
RESIDUAL_SECONDS = "residual_communication_seconds"
# Where steps have left what was expected of them, and where they are back: what they take in the
# median then, and what is expected.
DRIFTED_STEP_SECONDS = "drifted_step_seconds"
RETURNED_STEP_SECONDS = "returned_step_seconds"
EXPECTED_STEP_SECONDS = "expected_step_seconds"
# Written once, with the first step: how many may go by before a plan is in force.
MAX_TUNING_STEPS = "max_tuning_steps"
HISTORY = (
    STEP_SECONDS,
    DISTURBED_STEP_SECONDS,
    BACKWARD_SECONDS,
    RESIDUAL_SECONDS,
    DRIFTED_STEP_SECONDS,
    RETURNED_STEP_SECONDS,
    EXPECTED_STEP_SECONDS,
)


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
        _set(self, "step", checks.integer("step", self.step, minimum=1))
        if self.origin not in ORIGINS:
            raise ValueError(f"origin must be one of {', '.join(ORIGINS)}, got {self.origin!r}")
        strategies.resolve(self.strategy)
        threads = checks.sequence("threads", self.threads)
        _set(self, "threads", tuple(check_threads("threads", r) for r in threads))
        if not self.threads:
            raise ValueError("threads must hold at least one number, got ()")
        checks.instance("conclusion", self.conclusion, Conclusion)
        _set(self, "versions", checks.texts("versions", self.versions))

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
        return _tag(self.function, kind, self.plan.fingerprint)

    def to_json(self) -> str:
        """Returns the record as JSON text; `from_json` reads it back unchanged."""
        document = _fields(self) | {
            "strategy": {"name": self.strategy.name} | dataclasses.asdict(self.strategy),
        }
        del document["conclusion"]
        return _written(self.KIND, document | self.conclusion.to_document())

    @classmethod
    def from_json(cls, document: str) -> "PlanRecord":
        """Reads a record from JSON text; `ValueError` names what is wrong with it."""
        value = checks.json_document(_format(cls.KIND), VERSION, document)
        # Earlier versions kept steps of another time there, which compare with nothing.
        value.pop("baseline_seconds", None)
        required, optional = checks.field_names(Conclusion)
        own_required, own_optional = checks.field_names(cls)
        own_required.remove("conclusion")
        checks.keys(
            _format(cls.KIND), value, (*required, *own_required), (*optional, *own_optional)
        )
        own = {name: value.pop(name) for name in (*own_required, *own_optional) if name in value}
        own["strategy"] = _strategy(own["strategy"])
        return cls(**own, conclusion=Conclusion.from_document(value))


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
      group: index in the plan; -1 where the pass has left it alone.
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
        _set(self, "group", checks.integer("group", self.group, minimum=-1))
        _set(self, "num_threads", check_threads("num_threads", self.num_threads))
        _set(self, "num_bytes", checks.integer("num_bytes", self.num_bytes))
        for field in ("ready", "start", "end"):
            _set(self, field, _spread(field, getattr(self, field)))


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
      tensors: indices in the plan of what it reduced; empty where that is its group, whole.
    """

    group: int
    num_threads: int
    num_bytes: int
    enqueued_ns: int
    started_ns: int
    first_byte_ns: int
    finished_ns: int
    tensors: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if field.name != "tensors":
                minimum = -1 if field.name == "group" else 0
                value = checks.integer(field.name, getattr(self, field.name), minimum)
                _set(self, field.name, value)
        tensors = checks.sequence("tensors", self.tensors)
        _set(self, "tensors", tuple(checks.integer("tensors", index) for index in tensors))

    @classmethod
    def of(cls, record: "AllReduceRecord", plan: Plan) -> "AllReduceSpan":
        """Of what the engine says of an all-reduce."""
        at = {name: index for index, name in enumerate(plan.tensor_names)}
        tensors = tuple(sorted(at[name] for name in record.tensor_names if name in at))
        names = [field.name for field in dataclasses.fields(cls) if field.name != "tensors"]
        times = {name: getattr(record, name) for name in names}
        return cls(**times, tensors=() if tensors == _whole(plan, record.group) else tensors)

    def reduced(self, plan: Plan) -> tuple[int, ...]:
        """Indices in the plan of what it reduced."""
        return self.tensors or _whole(plan, self.group)


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
      host: the name of the rank's host; empty in files of versions before.

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
    host: str = ""

    KIND: ClassVar[str] = "step"

    def __post_init__(self) -> None:
        checks.text("function", self.function)
        checks.text("plan", self.plan)
        for field in ("rank", "step", "started_ns", "finished_ns"):
            _set(self, field, checks.integer(field, getattr(self, field)))
        _set(self, "all_reduces", checks.items("all_reduces", self.all_reduces, AllReduceSpan))
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
        checks.text("host", self.host)

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
                AllReduceSpan.of(record, plan)
                for record in sorted(records, key=lambda record: record.sequence)
            ),
            backward_start_ns=backward_start_ns,
            produced_ns=produced_ns,
        )

    def timeline(self, plan: Plan) -> MeasuredTimeline | None:
        """The all-reduces along backward computation; None where the step does not tell that.

        That is, where it was not traced, has reduced nothing, or is of another plan.
        """
        start_ns, produced = self.backward_start_ns, self.produced_ns
        if start_ns is None or not self.all_reduces or len(produced) != len(plan.tensor_names):
            return None
        spans = sorted(self.all_reduces, key=lambda one: (one.started_ns, one.group))
        if any(index >= len(produced) for span in spans for index in span.tensors):
            return None
        groups = tuple(
            MeasuredGroup(
                span.group,
                span.num_threads,
                span.num_bytes,
                ready_seconds=max(
                    [0, *(produced[index] - start_ns for index in span.reduced(plan))]
                )
                * 1e-9,
                start_seconds=(span.started_ns - start_ns) * 1e-9,
                end_seconds=(span.finished_ns - start_ns) * 1e-9,
            )
            for span in spans
        )
        compute_seconds = max(max(produced) - start_ns, 0) * 1e-9
        ends = [compute_seconds, *(group.end_seconds for group in groups)]
        return MeasuredTimeline(groups, compute_seconds, max(ends))

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


@dataclass(frozen=True)
class TimelineRecord:
    """What the steps under a plan did, as far as they were traced.

    It is computed of `StepRecord`s. Files of versions before hold it as well.

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
        _set(self, "spans", checks.items("spans", self.spans, SpanRecord))
        for field in ("compute", "backward"):
            _set(self, field, _spread(field, getattr(self, field)))

    @classmethod
    def of(cls, plan: Plan, steps: "Sequence[StepRecord]") -> "TimelineRecord | None":
        """Median and quartiles over the steps that can be laid along their computation.

        Steps that executed other all-reduces than most, such as one from before a graph was
        traced anew, do not count. None where no step counts.

        Args:
            plan: what the steps ran under.
            steps: of one training function, in the order in which they were taken.
        """
        timelines = [one for one in (step.timeline(plan) for step in steps) if one is not None]
        if not timelines:
            return None
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
            function=steps[-1].function,
            plan=plan.fingerprint,
            step=steps[-1].step,
            num_steps=len(counted),
            spans=spans,
            compute=Spread.of([t.compute_seconds for t in counted]),
            backward=Spread.of([t.backward_seconds for t in counted]),
        )

    @classmethod
    def from_json(cls, document: str) -> "TimelineRecord":
        """Reads a record from JSON text; `ValueError` names what is wrong with it."""
        return cls(**_read(cls, document))


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
        _set(self, "step", checks.integer("step", self.step, minimum=1))
        for field, kind in _OF_PIPELINES.items():
            checks.instance(field, getattr(self, field), kind)
        _set(self, "bars", checks.items("bars", self.bars, Bar))
        _set(self, "seconds", checks.real("seconds", self.seconds, minimum=0))

    @property
    def tag(self) -> str:
        """The name of the series of summaries that the record belongs to."""
        return _tag(self.function, self.KIND, self.plan.fingerprint)

    def to_json(self) -> str:
        """Returns the record as JSON text; `from_json` reads it back unchanged."""
        document = _fields(self) | {"bars": [dataclasses.asdict(one) for one in self.bars]}
        document |= {field: json.loads(getattr(self, field).to_json()) for field in _OF_PIPELINES}
        return _written(self.KIND, document)

    @classmethod
    def from_json(cls, document: str) -> "PipelineRecord":
        """Reads a record from JSON text; `ValueError` names what is wrong with it."""
        value = _read(cls, document)
        for field, kind in _OF_PIPELINES.items():
            value[field] = kind.from_json(json.dumps(value[field]))
        return cls(**value)


_OF_PIPELINES: dict[str, Any] = {"plan": PipelinePlan, "layers": LayerGraph, "cluster": Cluster}


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
        _set(self, "step", checks.integer("step", self.step, minimum=1))
        checks.instance("plan", self.plan, BurstPlan)
        _set(self, "bars", checks.items("bars", self.bars, Bar))
        _set(self, "seconds", checks.real("seconds", self.seconds, minimum=0))
        if self.profile is not None:
            checks.instance("profile", self.profile, ScalingProfile)
            if self.profile.names != self.plan.layer_names:
                raise ValueError("profile must be of the layers of the plan, got one of others")

    @property
    def tag(self) -> str:
        """The name of the series of summaries that the record belongs to."""
        return _tag(self.function, self.KIND, self.plan.fingerprint)

    def to_json(self) -> str:
        """Returns the record as JSON text; `from_json` reads it back unchanged."""
        profile = None if self.profile is None else json.loads(self.profile.to_json())
        document = _fields(self) | {
            "plan": json.loads(self.plan.to_json()),
            "bars": [dataclasses.asdict(one) for one in self.bars],
            "profile": profile,
        }
        return _written(self.KIND, document)

    @classmethod
    def from_json(cls, document: str) -> "BurstRecord":
        """Reads a record from JSON text; `ValueError` names what is wrong with it."""
        value = _read(cls, document)
        value["plan"] = BurstPlan.from_json(json.dumps(value["plan"]))
        if value.get("profile") is not None:
            value["profile"] = ScalingProfile.from_json(json.dumps(value["profile"]))
        return cls(**value)


@dataclass(frozen=True, kw_only=True)
class BackgroundRecord(Got):
    """What a background job beside a training function has got so far, on one rank.

    Attributes:
      function: name of the training function.
      rank: beside which it runs.

    Raises:
      ValueError: a field is out of its range; named.
    """

    function: str
    rank: int

    KIND: ClassVar[str] = "background"

    def __post_init__(self) -> None:
        checks.text("function", self.function)
        checks.text("command", self.command)
        for field in ("rank", "step", "num_pauses"):
            _set(self, field, checks.integer(field, getattr(self, field)))
        for field in ("max_slowdown", "share_of_steps", "seconds"):
            _set(self, field, checks.real(field, getattr(self, field), minimum=0))
        if self.slowdown is not None:
            _set(self, "slowdown", checks.real("slowdown", self.slowdown))
        if self.num_steps is not None:
            _set(self, "num_steps", checks.integer("num_steps", self.num_steps))

    @property
    def tag(self) -> str:
        """The name of the series of summaries that the record belongs to."""
        return f"{self.function}/{self.KIND}"

    def to_json(self) -> str:
        """Returns the record as JSON text; `from_json` reads it back unchanged."""
        return _written(self.KIND, _fields(self))

    @classmethod
    def from_json(cls, document: str) -> "BackgroundRecord":
        """Reads a record from JSON text; `ValueError` names what is wrong with it."""
        return cls(**_read(cls, document))


# What is written, and what is read.
Record = PlanRecord | StepRecord | PipelineRecord | BurstRecord | BackgroundRecord
KINDS: dict[str, type[Record | TimelineRecord]] = {
    kind.KIND: kind
    for kind in (
        PlanRecord, TimelineRecord, StepRecord, PipelineRecord, BurstRecord, BackgroundRecord
    )
}  # fmt: skip


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


def _whole(plan: Plan, group: int) -> tuple[int, ...]:
    """Indices of a group's tensors; none where there is no such group."""
    if not 0 <= group < len(plan.groups):
        return ()
    return tuple(range(plan.groups[group].start, plan.groups[group].stop))


def _tag(function: str, kind: str, fingerprint: str) -> str:
    return f"{function}/{kind}/{fingerprint[:_TAG_DIGITS]}"


def _written(kind: str, document: dict[str, Any]) -> str:
    return json.dumps({"format": _format(kind), "version": VERSION} | document)


def _read(kind: type[Record | TimelineRecord], document: str) -> dict[str, Any]:
    required, optional = checks.field_names(kind)
    name = _format(kind.KIND)
    value = checks.json_document(name, VERSION, document)
    return dict(checks.keys(name, value, required, optional))


def _fields(record: Record) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}


def _set(record: Any, field: str, value: Any) -> None:
    object.__setattr__(record, field, value)


def _spread(field: str, value: Any) -> Spread:
    if isinstance(value, Spread):
        return value
    return checks.built(field, value, Spread)


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
