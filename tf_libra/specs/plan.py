"""Data-parallel plan: tensor groups, threads and order of all-reduces."""

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar

from tf_libra.internal import formatting, validation
from tf_libra.internal.codec import FingerprintedDocument
from tf_libra.internal.values import (
    AtLeastOne,
    Int32,
    Int32Count,
    Names,
    Natural,
    Naturals,
    NonNegative,
    Value,
    one_of,
)
from tf_libra.specs.backward_profile import BackwardProfile, item_bytes

_SHORT_ID_LENGTH = 16
WIRE_DTYPES = ("bfloat16", "float16")
"""Dtypes to which ranks may round float32 tensors on their way."""
WireDtype = Annotated[str, one_of(WIRE_DTYPES)]


@dataclass(frozen=True)
class TensorGroup(Value):
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

    start: Natural
    stop: Natural
    num_threads: Int32Count
    stream: Int32 = 0
    start_byte: Natural = 0
    stop_byte: Natural | None = None

    def _validate(self) -> None:
        validation.integer("stop", self.stop, minimum=self.start + 1)
        if self.stop_byte is not None:
            least = self.start_byte + 1 if self.stop == self.start + 1 else 1
            validation.integer("stop_byte", self.stop_byte, least)

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
class Plan(FingerprintedDocument):
    """Groups of one training step in launch order, the same on every rank.

    A group starts when its last tensor is produced, the previous group has started, and the
    previous group of its stream has ended. With `gathers`, groups are reduce-scatters, and each
    rank updates the parts that it owns.

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
      wire_dtype: dtype to which ranks round float32 tensors on their way, which is lossy; None:
        every tensor travels in its own.
      gathers: groups of the weights that are gathered under the next forward pass, in forward
        order: ranges of whole tensors, the last ones first. They are sequential and begin when
        all reduce-scatters have ended. Empty: the plan is of all-reduces.

    Raises:
      ValueError: the groups or gathers do not cover every byte of the tensors once, cut one within
        an element, or a field is out of its range.
    """

    groups: tuple[TensorGroup, ...]
    tensor_names: Names
    num_bytes: Naturals
    num_workers: Int32Count
    strategy: str
    predicted_seconds: NonNegative | None = None
    after_backward: bool = False
    notes: tuple[str, ...] = ()
    dtypes: tuple[str, ...] | None = None
    contention: AtLeastOne = 1.0
    wire_dtype: WireDtype | None = None
    gathers: tuple[TensorGroup, ...] = ()

    FORMAT: ClassVar = "tf-libra plan"
    INDENT: ClassVar = 1
    SPARSE: ClassVar = ("wire_dtype", "gathers")

    def _validate(self) -> None:
        count = len(self.tensor_names)
        validation.same_length("num_bytes", self.num_bytes, "tensor name", count)
        dtypes: tuple[str | None, ...] = (None,) * count
        if self.dtypes is not None:
            dtypes = self.dtypes
            validation.same_length("dtypes", dtypes, "tensor name", count)
        _check_cover(self.groups, self.num_bytes, dtypes)
        if self.gathers:
            _check_gathers(self.gathers, count)
            if self.wire_dtype is not None:
                raise ValueError(
                    "wire_dtype must be None with gathers, which send weights as they are, got"
                    f" {self.wire_dtype!r}"
                )

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
        wire_dtype: str | None = None,
        gathers: tuple[TensorGroup, ...] = (),
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
            wire_dtype=wire_dtype,
            gathers=gathers,
        )

    def _executed(self) -> dict[str, Any]:
        """Returns what ranks execute: names, sizes, dtypes, groups and world size."""
        groups: list[list[int | None]] = []
        cuts_tensors = self.cuts_tensors
        for group in self.groups:
            groups.append([group.start, group.stop, group.num_threads, group.stream])
            if cuts_tensors:
                groups[-1] += [group.start_byte, group.stop_byte]
        executed: dict[str, Any] = {
            "num_workers": self.num_workers,
            "after_backward": self.after_backward,
            "groups": groups,
            "tensor_names": self.tensor_names,
            "num_bytes": self.num_bytes,
            "dtypes": self.dtypes,
        }
        if self.wire_dtype:
            executed["wire_dtype"] = self.wire_dtype
        if self.gathers:
            executed["gathers"] = [[g.start, g.stop, g.num_threads] for g in self.gathers]
        return executed

    @property
    def cuts_tensors(self) -> bool:
        """True if a group holds only a part of a tensor."""
        return any(group.cuts_tensors for group in self.groups)

    @property
    def is_one_all_reduce(self) -> bool:
        """True if one all-reduce has all tensors."""
        return len(self.groups) == 1 and not self.gathers

    @property
    def num_streams(self) -> int:
        """Number of streams."""
        return len({group.stream for group in self.groups})

    @property
    def num_lanes(self) -> int:
        """Most concurrent threads: the sum of each stream's widest group, or the widest gather."""
        widest: dict[int, int] = {}
        for group in self.groups:
            widest[group.stream] = max(group.num_threads, widest.get(group.stream, 0))
        return max(sum(widest.values()), *(gather.num_threads for gather in self.gathers), 0)

    @cached_property
    def group_bytes(self) -> tuple[int, ...]:
        """Size of each group in bytes."""
        before = [0, *itertools.accumulate(self.num_bytes)]
        starts = [before[group.start] + group.start_byte for group in self.groups]
        return tuple(b - a for a, b in itertools.pairwise([*starts, before[-1]]))

    @cached_property
    def gather_bytes(self) -> tuple[int, ...]:
        """Size of each gather in bytes."""
        return tuple(sum(self.num_bytes[g.start : g.stop]) for g in self.gathers)

    @cached_property
    def wire_bytes(self) -> tuple[int, ...]:
        """Bytes of each group in the dtypes in which its tensors travel."""
        if self.wire_dtype is None:
            return self.group_bytes
        dtypes: tuple[str | None, ...] = self.dtypes or (None,) * len(self.num_bytes)
        return tuple(
            sum(
                wire_size(part.num_bytes, dtypes[part.tensor], self.wire_dtype)
                for part in self.parts(index)
            )
            for index in range(len(self.groups))
        )

    @property
    def wire_share(self) -> float:
        """Share of the tensors' bytes that travel: 1, or 0.5 if all of them are rounded."""
        total = sum(self.num_bytes)
        return sum(self.wire_bytes) / total if total else 1.0

    @property
    def loss(self) -> str | None:
        """Sentence on what the plan loses; None for a plan without loss."""
        if self.wire_dtype is None:
            return None
        travelling, total = map(formatting.size, (sum(self.wire_bytes), sum(self.num_bytes)))
        return (
            f"lossy: float32 gradients are rounded to {self.wire_dtype} between ranks; {travelling}"
            f" travel instead of {total}"
        )

    def parts(self, index: int) -> tuple[TensorPart, ...]:
        """Returns the parts of a group's tensors, in backward order."""
        group = self.groups[index]
        parts = [TensorPart(i, 0, self.num_bytes[i]) for i in range(group.start, group.stop)]
        if group.stop_byte is not None:
            parts[-1] = TensorPart(group.stop - 1, 0, group.stop_byte)
        if group.start_byte:
            parts[0] = TensorPart(group.start, group.start_byte, parts[0].stop_byte)
        return tuple(parts)

    @property
    def tensor_kinds(self) -> tuple[str, ...]:
        """Returns "normal", "merged" or "simultaneous" per tensor (ASC-WFBP, Definitions 1-3).

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

    def _to_fields(self) -> dict[str, Any]:
        """Returns the fields as JSON values; groups have the keys of cuts if a tensor is cut."""
        fields = super()._to_fields()
        for group in () if self.cuts_tensors else fields["groups"]:
            del group["start_byte"], group["stop_byte"]
        for gather in fields.get("gathers", ()):
            del gather["start_byte"], gather["stop_byte"]
        return fields

    @property
    def thread_counts(self) -> list[int]:
        """Numbers of threads of groups and gathers, ascending."""
        return sorted({group.num_threads for group in (*self.groups, *self.gathers)})

    def describe_groups(self) -> str:
        """Returns the number of groups and gathers as a phrase."""
        text = formatting.count(len(self.groups), "group")
        if self.gathers:
            text += f" and {formatting.count(len(self.gathers), 'gather')}"
        return text

    @property
    def short_id(self) -> str:
        """Prefix of the fingerprint, for messages."""
        return self.fingerprint[:_SHORT_ID_LENGTH]


def wire_size(num_bytes: int, dtype: str | None, wire_dtype: str | None) -> int:
    """Returns the bytes that travel of a tensor; an unknown dtype counts as float32."""
    is_rounded = wire_dtype is not None and dtype in (None, "float32")
    return num_bytes // 2 if is_rounded else num_bytes


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
    groups: tuple[TensorGroup, ...], sizes: tuple[int, ...], dtypes: tuple[str | None, ...]
) -> None:
    """Raise `ValueError` unless the groups are consecutive and end with the last tensor."""
    tensor, byte = 0, 0  # required begin of the next group
    for index, group in enumerate(groups):
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


def _check_gathers(gathers: tuple[TensorGroup, ...], count: int) -> None:
    """Raise `ValueError` unless the gathers are consecutive from the last tensor to the first."""
    stop = count
    for index, gather in enumerate(gathers):
        if gather.stop != stop:
            raise ValueError(f"gathers[{index}].stop must be {stop}, got {gather.stop}")
        if gather.cuts_tensors or gather.stream:
            raise ValueError(
                f"gathers[{index}] must be of whole tensors on stream 0, got {gather!r}"
            )
        stop = gather.start
    if stop:
        raise ValueError(f"gathers must cover {count} tensors; they lack the first {stop}")
