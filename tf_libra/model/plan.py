"""A plan: which gradients are all-reduced together, with how many threads, in which order."""

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property

from tf_libra import checks
from tf_libra.model.profile import BackwardProfile

_FORMAT = "tf-libra plan"
_VERSION = 1
_MAX_STREAM = 1
_SHORT_ID_LENGTH = 16


@dataclass(frozen=True)
class TensorGroup:
    """Tensors all-reduced together.

    Attributes:
      start: index of the first tensor, in backward order.
      stop: one past the last.
      num_threads: communication threads r.
      stream: 0 or 1. Groups of one stream run one after the other; two streams run at once.

    Raises:
      ValueError: the range is empty or a number lies outside its range.
    """

    start: int
    stop: int
    num_threads: int
    stream: int = 0

    def __post_init__(self) -> None:
        start = checks.integer("start", self.start)
        object.__setattr__(self, "start", start)
        object.__setattr__(self, "stop", checks.integer("stop", self.stop, minimum=start + 1))
        threads = checks.integer("num_threads", self.num_threads, 1, checks.MAX_INT32)
        object.__setattr__(self, "num_threads", threads)
        object.__setattr__(self, "stream", checks.integer("stream", self.stream, 0, _MAX_STREAM))


@dataclass(frozen=True)
class Plan:
    """The groups of one training step in the order of their launch, which every rank follows.

    A group starts when its last tensor is produced, the group before it has started, and the group
    before it on its own stream has ended.

    Attributes:
      groups: contiguous half-open ranges that cover all tensors, in backward order.
      tensor_names: names of the L tensors, in backward order.
      num_bytes: their sizes.
      num_workers: N, the world size the plan was made for.
      strategy: the name of the strategy that made it.
      predicted_seconds: what `simulate` says backward takes; None where nobody has asked it.
      after_backward: no group starts before the last tensor is produced.
      notes: what a reader should know of how the plan was made.
      dtypes: dtype names of the tensors; None where not all are known.
      contention: gamma of ASC-WFBP, Eq. 9: how many times longer a byte takes while two all-reduces
        run at once. Of no effect where all groups are on one stream.

    Raises:
      ValueError: the groups do not cover the tensors, or a field is out of its range.
    """

    groups: tuple[TensorGroup, ...]
    tensor_names: tuple[str, ...]
    num_bytes: tuple[int, ...]
    num_workers: int
    strategy: str
    predicted_seconds: float | None = None
    after_backward: bool = False
    notes: tuple[str, ...] = ()
    dtypes: tuple[str, ...] | None = None
    contention: float = 1.0

    def __post_init__(self) -> None:
        groups = checks.sequence("groups", self.groups)
        names = tuple(
            checks.text("tensor_names", n)
            for n in checks.sequence("tensor_names", self.tensor_names)
        )
        if len(set(names)) < len(names):
            raise ValueError("tensor_names must be unique")
        sizes = tuple(
            checks.integer("num_bytes", n) for n in checks.sequence("num_bytes", self.num_bytes)
        )
        if len(sizes) != len(names):
            raise ValueError(
                f"num_bytes must have one entry per tensor name: {len(names)}, got {len(sizes)}"
            )
        covered = 0
        for index, group in enumerate(groups):
            if not isinstance(group, TensorGroup):
                raise ValueError(f"groups[{index}] must be a TensorGroup, got {group!r}")
            if group.start != covered:
                raise ValueError(f"groups[{index}].start must be {covered}, got {group.start}")
            covered = group.stop
        if not names or covered != len(names):
            raise ValueError(
                f"groups must cover {len(names)} tensors, at least 1; they cover {covered}"
            )
        frozen = {
            "groups": groups,
            "tensor_names": names,
            "num_bytes": sizes,
            "num_workers": checks.integer("num_workers", self.num_workers, 1, checks.MAX_INT32),
            "strategy": checks.text("strategy", self.strategy),
            "after_backward": checks.boolean("after_backward", self.after_backward),
            "notes": tuple(checks.text("notes", n) for n in checks.sequence("notes", self.notes)),
            "contention": checks.real("contention", self.contention, minimum=1),
        }
        if self.predicted_seconds is not None:
            frozen["predicted_seconds"] = checks.real(
                "predicted_seconds", self.predicted_seconds, minimum=0
            )
        if self.dtypes is not None:
            dtypes = tuple(checks.text("dtypes", d) for d in checks.sequence("dtypes", self.dtypes))
            if len(dtypes) != len(names):
                raise ValueError(
                    f"dtypes must have one entry per tensor name: {len(names)}, got {len(dtypes)}"
                )
            frozen["dtypes"] = dtypes
        for field, value in frozen.items():
            object.__setattr__(self, field, value)

    @classmethod
    def for_profile(
        cls,
        profile: BackwardProfile,
        groups: tuple[TensorGroup, ...],
        num_workers: int,
        strategy: str,
        *,
        predicted_seconds: float | None = None,
        after_backward: bool = False,
        notes: tuple[str, ...] = (),
        contention: float = 1.0,
    ) -> "Plan":
        """Returns a plan of a profile's tensors; see the class for the arguments."""
        dtypes = tuple(t.dtype for t in profile.tensors if t.dtype is not None)
        return cls(
            groups=groups,
            tensor_names=profile.names,
            num_bytes=tuple(t.num_bytes for t in profile.tensors),
            num_workers=num_workers,
            strategy=strategy,
            predicted_seconds=predicted_seconds,
            after_backward=after_backward,
            notes=notes,
            dtypes=dtypes if len(dtypes) == len(profile.tensors) else None,
            contention=contention,
        )

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over what the ranks execute, in hexadecimal: equal plans run alike.

        It covers names, sizes, dtypes, groups, threads, streams, world size and `after_backward`;
        neither the prediction nor the notes.
        """
        executed = {
            "format": _FORMAT,
            "version": _VERSION,
            "num_workers": self.num_workers,
            "after_backward": self.after_backward,
            "groups": [[g.start, g.stop, g.num_threads, g.stream] for g in self.groups],
            "tensor_names": self.tensor_names,
            "num_bytes": self.num_bytes,
            "dtypes": self.dtypes,
        }
        canonical = json.dumps(executed, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    @property
    def tensor_kinds(self) -> tuple[str, ...]:
        """What each tensor is, "normal", "merged" or "simultaneous" (ASC-WFBP, Definitions 1-3).

        A tensor is merged into its group's last one; that one is simultaneous where its group is on
        another stream than the group before, and so does not wait for it.
        """
        kinds = []
        stream = self.groups[0].stream
        for group in self.groups:
            kinds += ["merged"] * (group.stop - group.start - 1)
            kinds.append("normal" if group.stream == stream else "simultaneous")
            stream = group.stream
        return tuple(kinds)

    def to_json(self) -> str:
        """Returns JSON text with the fingerprint; `from_json` reads it back unchanged."""
        return json.dumps(
            {"format": _FORMAT, "version": _VERSION, "fingerprint": self.fingerprint}
            | asdict(self),
            indent=1,
        )

    @property
    def short_id(self) -> str:
        """A short name for the plan; equal plans have equal names."""
        return self.fingerprint[:_SHORT_ID_LENGTH]

    @classmethod
    def from_json(cls, document: str) -> "Plan":
        """Reads a plan from JSON text.

        Raises:
          ValueError: malformed, too large, of another version, a field out of its range, or a
            fingerprint that is not that of the content.
        """
        value = checks.keys(
            _FORMAT,
            checks.json_document(_FORMAT, _VERSION, document),
            required=(
                "fingerprint",
                "groups",
                "tensor_names",
                "num_bytes",
                "num_workers",
                "strategy",
            ),
            optional=("predicted_seconds", "after_backward", "notes", "dtypes", "contention"),
        )
        fingerprint = checks.text("fingerprint", value.pop("fingerprint"))
        groups = []
        for index, entry in enumerate(checks.sequence("groups", value["groups"])):
            field = f"groups[{index}]"
            checks.keys(field, entry, ("start", "stop", "num_threads"), ("stream",))
            try:
                groups.append(TensorGroup(**entry))
            except ValueError as error:
                raise ValueError(f"{field}: {error}") from None
        plan = cls(**(value | {"groups": tuple(groups)}))
        if plan.fingerprint != fingerprint:
            raise ValueError(
                f"fingerprint must be that of the plan's content, {plan.fingerprint}, "
                f"got {fingerprint!r}"
            )
        return plan
