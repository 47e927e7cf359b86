"""Data-parallel plan: tensor groups, threads and order of all-reduces."""

import itertools
import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from tf_libra.internal import validation
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.dtypes import item_bytes

_FORMAT = "tf-libra plan"
_VERSION = 1
_SHORT_ID_LENGTH = 16


@dataclass(frozen=True)
class TensorGroup:
    """Range of tensors in one all-reduce; the first and the last may be cut.

    Attributes:
      start: index of the first tensor, in backward order.
      stop: index after the last tensor.
      num_threads: communication threads r.
      stream: groups of one stream are sequential, groups of different streams concurrent.
      start_byte: first byte of the first tensor.
      stop_byte: byte of the last tensor at which the group ends; None: the tensor's end.

    Raises:
      ValueError: the range is empty or a number lies outside its range.
    """

    start: int
    stop: int
    num_threads: int
    stream: int = 0
    start_byte: int = 0
    stop_byte: int | None = None

    def __post_init__(self) -> None:
        start = validation.integer("start", self.start)
        stop = validation.integer("stop", self.stop, minimum=start + 1)
        start_byte = validation.integer("start_byte", self.start_byte)
        frozen: dict[str, Any] = {
            "start": start,
            "stop": stop,
            "num_threads": validation.integer(
                "num_threads", self.num_threads, 1, validation.MAX_INT32
            ),
            "stream": validation.integer("stream", self.stream, 0, validation.MAX_INT32),
            "start_byte": start_byte,
        }
        if self.stop_byte is not None:
            least = start_byte + 1 if stop == start + 1 else 1
            frozen["stop_byte"] = validation.integer("stop_byte", self.stop_byte, least)
        for field, value in frozen.items():
            object.__setattr__(self, field, value)

    @property
    def ended(self) -> int:
        """Index after the last tensor that is complete after this group."""
        return self.stop - (self.stop_byte is not None)

    @property
    def cuts_tensors(self) -> bool:
        """True if the group holds only a part of its first or last tensor."""
        return self.start_byte > 0 or self.stop_byte is not None


@dataclass(frozen=True)
class TensorPart:
    """Byte range of one tensor.

    Attributes:
      tensor: index of the tensor, in backward order.
      start_byte: first byte.
      stop_byte: byte after the last one.
    """

    tensor: int
    start_byte: int
    stop_byte: int

    @property
    def num_bytes(self) -> int:
        """Number of bytes."""
        return self.stop_byte - self.start_byte


@dataclass(frozen=True)
class Plan:
    """Groups of one training step in launch order, the same on every rank.

    A group starts when its last tensor is produced, the previous group has started, and the
    previous group of its stream has ended.

    Attributes:
      groups: consecutive byte ranges that cover all tensors, in backward order. Tensors are cut
        between two elements.
      tensor_names: names of the L tensors, in backward order.
      num_bytes: sizes of the tensors.
      num_workers: N, the planned world size.
      strategy: name of the strategy that made the plan.
      predicted_seconds: simulated backward seconds; None before a simulation.
      after_backward: True if no group starts before the last tensor is produced.
      notes: remarks of the planner for the reader.
      dtypes: dtype names of the tensors; None if one is unknown.
      contention: gamma of ASC-WFBP, Eq. 9: the slowdown of transmission while two all-reduces run
        concurrently. The paper has at most two; each further one adds the same, so that k take
        1 + (k - 1)·(gamma - 1) times as long per byte. No effect on one stream.

    Raises:
      ValueError: the groups do not cover every byte of the tensors once, cut one within an
        element, or a field is out of its range.
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
        names = validation.names("tensor_names", self.tensor_names)
        sizes = validation.integers("num_bytes", self.num_bytes)
        validation.same_length("num_bytes", sizes, "tensor name", len(names))
        frozen: dict[str, Any] = {
            "tensor_names": names,
            "num_bytes": sizes,
            "num_workers": validation.integer(
                "num_workers", self.num_workers, 1, validation.MAX_INT32
            ),
            "strategy": validation.text("strategy", self.strategy),
            "after_backward": validation.boolean("after_backward", self.after_backward),
            "notes": validation.texts("notes", self.notes),
            "contention": validation.real("contention", self.contention, minimum=1),
        }
        if self.predicted_seconds is not None:
            frozen["predicted_seconds"] = validation.real(
                "predicted_seconds", self.predicted_seconds, minimum=0
            )
        dtypes: tuple[str | None, ...] = (None,) * len(names)
        if self.dtypes is not None:
            frozen["dtypes"] = dtypes = validation.texts("dtypes", self.dtypes)
            validation.same_length("dtypes", dtypes, "tensor name", len(names))
        frozen["groups"] = groups = validation.sequence("groups", self.groups)
        _check_cover(groups, sizes, dtypes)
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
        """Return a plan of a profile's tensors; see the class for the arguments."""
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
        """Hexadecimal SHA-256 of the executed plan.

        It covers names, sizes, dtypes, groups, threads, streams, world size and `after_backward`.
        The prediction and the notes are excluded.
        """
        groups: list[list[int | None]] = []
        cuts_tensors = self.cuts_tensors
        for group in self.groups:
            groups.append([group.start, group.stop, group.num_threads, group.stream])
            if cuts_tensors:
                groups[-1] += [group.start_byte, group.stop_byte]
        return validation.digest(
            _FORMAT,
            _VERSION,
            {
                "num_workers": self.num_workers,
                "after_backward": self.after_backward,
                "groups": groups,
                "tensor_names": self.tensor_names,
                "num_bytes": self.num_bytes,
                "dtypes": self.dtypes,
            },
        )

    @property
    def cuts_tensors(self) -> bool:
        """True if a group holds only a part of a tensor."""
        return any(group.cuts_tensors for group in self.groups)

    @property
    def num_streams(self) -> int:
        """Number of streams."""
        return len({group.stream for group in self.groups})

    @property
    def num_lanes(self) -> int:
        """Most concurrent threads: the sum of each stream's widest group."""
        widest: dict[int, int] = {}
        for group in self.groups:
            widest[group.stream] = max(group.num_threads, widest.get(group.stream, 0))
        return sum(widest.values())

    @cached_property
    def group_bytes(self) -> tuple[int, ...]:
        """Size of each group in bytes."""
        before = [0, *itertools.accumulate(self.num_bytes)]
        starts = [before[group.start] + group.start_byte for group in self.groups]
        return tuple(b - a for a, b in itertools.pairwise([*starts, before[-1]]))

    def parts(self, index: int) -> tuple[TensorPart, ...]:
        """Return the parts of a group's tensors, in backward order."""
        group = self.groups[index]
        parts = [TensorPart(i, 0, self.num_bytes[i]) for i in range(group.start, group.stop)]
        if group.stop_byte is not None:
            parts[-1] = TensorPart(group.stop - 1, 0, group.stop_byte)
        if group.start_byte:
            parts[0] = TensorPart(group.start, group.start_byte, parts[0].stop_byte)
        return tuple(parts)

    @property
    def tensor_kinds(self) -> tuple[str, ...]:
        """Return "normal", "merged" or "simultaneous" per tensor (ASC-WFBP, Definitions 1-3).

        Tensors are merged into the last one of their group. That one is simultaneous if its group
        is on another stream than the previous group. A cut tensor has the kind of its last part.
        """
        kinds: list[str] = []
        stream = self.groups[0].stream
        for group in self.groups:
            kinds += ["merged"] * (min(group.ended, group.stop - 1) - len(kinds))
            if group.ended == group.stop:
                kinds.append("normal" if group.stream == stream else "simultaneous")
            stream = group.stream
        return tuple(kinds)

    def to_json(self) -> str:
        """Return JSON text with the fingerprint, which `from_json` reads back unchanged.

        Groups have the keys of cuts only in plans that cut tensors.
        """
        value = asdict(self)
        if not self.cuts_tensors:
            for entry in value["groups"]:
                del entry["start_byte"], entry["stop_byte"]
        header = {"format": _FORMAT, "version": _VERSION, "fingerprint": self.fingerprint}
        return json.dumps(header | value, indent=1)

    @property
    def short_id(self) -> str:
        """Prefix of the fingerprint, for messages."""
        return self.fingerprint[:_SHORT_ID_LENGTH]

    @classmethod
    def from_json(cls, document: str) -> "Plan":
        """Read a plan from JSON text.

        Raises:
          ValueError: malformed, too large, another version, a field out of its range, or a
            fingerprint that does not match the content.
        """
        value = validation.keys(
            _FORMAT,
            validation.json_document(_FORMAT, _VERSION, document),
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
        fingerprint = value.pop("fingerprint")
        value["groups"] = validation.items("groups", value["groups"], TensorGroup)
        plan = cls(**value)
        validation.same_fingerprint(fingerprint, plan.fingerprint)
        return plan


def check_whole_tensors(plan: Plan, executor: str) -> None:
    """Raise `ValueError` for a plan that cuts tensors.

    Args:
      plan: plan to execute.
      executor: name of the executor, for the message.
    """
    for index, group in enumerate(plan.groups):
        if group.cuts_tensors:
            cut = group.start if group.start_byte else group.stop - 1
            raise ValueError(
                f"plan: groups[{index}] must be of whole tensors, as {executor} cannot all-reduce "
                f"parts; it cuts {plan.tensor_names[cut]!r}"
            )


def _check_cover(
    groups: tuple[Any, ...], sizes: tuple[int, ...], dtypes: tuple[str | None, ...]
) -> None:
    """Raise `ValueError` unless the groups are consecutive and end with the last tensor."""
    tensor, byte = 0, 0  # required begin of the next group
    for index, group in enumerate(groups):
        if not isinstance(group, TensorGroup):
            raise ValueError(f"groups[{index}] must be a TensorGroup, got {group!r}")
        if group.start != tensor:
            raise ValueError(f"groups[{index}].start must be {tensor}, got {group.start}")
        if group.start_byte != byte:
            raise ValueError(f"groups[{index}].start_byte must be {byte}, got {group.start_byte}")
        tensor, byte = group.stop, 0
        if tensor > len(sizes):
            break
        if group.stop_byte is not None:
            tensor, byte = group.stop - 1, group.stop_byte
            field = f"groups[{index}].stop_byte"
            if byte >= sizes[tensor]:
                raise ValueError(
                    f"{field} must be below {sizes[tensor]}, the tensor's num_bytes, or None for "
                    f"its end, got {byte}"
                )
            item = item_bytes(dtypes[tensor]) or 1
            if byte % item:
                raise ValueError(
                    f"{field} must be a multiple of {item}, an element of {dtypes[tensor]}, got "
                    f"{byte}"
                )
    if not sizes or (tensor, byte) != (len(sizes), 0):
        covered = f"{tensor} of them" + (f" and {byte} bytes of the next" if byte else "")
        raise ValueError(
            f"groups must cover {len(sizes)} tensors, at least 1; they cover {covered}"
        )
