"""Backward profile: names, sizes and production times of a step's gradients."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tf_libra.internal import validation
from tf_libra.internal.codec import Document
from tf_libra.internal.values import Natural, NonNegative, Share, Value


@dataclass(frozen=True)
class GradientTensor(Value):
    """Gradient of one step.

    Attributes:
      name: unique within a profile.
      num_bytes: size c, at least 0.
      compute_seconds: contention-free seconds b of backward computation between the production of
        the previous tensor and this one (for the first: from the start of backward), at least 0.
      dtype: name of the TensorFlow dtype, such as "float32"; None if unknown. Of rows of a sparse
        gradient: see `rows_of`.
      update_seconds: contention-free seconds of the optimizer's update after the all-reduce, at
        least 0; 0 if unknown.
      forward_seconds: contention-free seconds of forward computation between the first use of this
        weight and that of the next one in forward order, or the end of the forward pass, at least
        0; 0 if unknown.
      density: share of `num_bytes` that count in the time of its all-reduce, as ranks leave out
        blocks of zeros (docs/zero_blocks.md); 1: all bytes.

    Raises:
      ValueError: a size or a time is negative or not finite, or a density is not from 0 to 1.
    """

    name: str
    num_bytes: Natural
    compute_seconds: NonNegative
    dtype: str | None = None
    update_seconds: NonNegative = 0.0
    forward_seconds: NonNegative = 0.0
    density: Share = 1.0

    SPARSE: ClassVar = ("dtype", "update_seconds", "forward_seconds", "density")

    def effective_size(self, num_bytes: int) -> int:
        """Returns how many of its `num_bytes` bytes count: at least 1, unless there are none."""
        if self.density == 1 or num_bytes == 0:
            return num_bytes
        return max(math.ceil(num_bytes * self.density), 1)


@dataclass(frozen=True)
class BackwardProfile(Document):
    """Gradients of one step in backward order: tensor 0 is produced first.

    Attributes:
      tensors: gradients, at least one.
      rest_seconds: seconds of the step outside backward and the updates, such as forward
        computation; None if unknown.

    Raises:
      ValueError: no tensor, or two tensors of one name.
    """

    tensors: tuple[GradientTensor, ...]
    rest_seconds: NonNegative | None = None

    FORMAT: ClassVar = "tf-libra profile"
    SPARSE: ClassVar = ("rest_seconds",)
    INDENT: ClassVar = 1

    def _validate(self) -> None:
        if not self.tensors:
            raise ValueError("tensors must hold at least one gradient tensor, got none")
        seen: set[str] = set()
        for tensor in self.tensors:
            if tensor.name in seen:
                raise ValueError(f"names must be unique, got {tensor.name!r} twice")
            seen.add(tensor.name)
        validation.integer("the sum of num_bytes", sum(t.num_bytes for t in self.tensors))
        validation.real("the sum of compute_seconds", sum(t.compute_seconds for t in self.tensors))
        validation.real("the sum of update_seconds", sum(t.update_seconds for t in self.tensors))
        validation.real("the sum of forward_seconds", sum(t.forward_seconds for t in self.tensors))

    @classmethod
    def from_arrays(
        cls,
        num_bytes: ArrayLike,
        compute_seconds: ArrayLike,
        names: Sequence[str] | None = None,
        dtypes: Sequence[str] | None = None,
        update_seconds: ArrayLike | None = None,
        forward_seconds: ArrayLike | None = None,
        density: ArrayLike | None = None,
    ) -> "BackwardProfile":
        """Build a profile of L tensors from columns, in backward order.

        Args:
          num_bytes: sizes, shape [L].
          compute_seconds: contention-free seconds of backward computation, shape [L].
          names: unique names; None: "gradient_0" and so on.
          dtypes: dtype names, None if unknown.
          update_seconds: contention-free seconds of updates, shape [L]; None: zero.
          forward_seconds: contention-free seconds of forward computation, shape [L]; None: zero.
          density: shares of bytes that count in the time of all-reduces, shape [L]; None: 1.

        Raises:
          ValueError: columns of different lengths, or a value that `GradientTensor` rejects.
        """
        sizes = validation.sequence("num_bytes", num_bytes)
        seconds = validation.sequence("compute_seconds", compute_seconds)
        labels: Sequence[Any] = [f"gradient_{i}" for i in range(len(sizes))]
        if names is not None:
            labels = validation.sequence("names", names)
        kinds: Sequence[Any] = [None] * len(sizes)
        if dtypes is not None:
            kinds = validation.sequence("dtypes", dtypes)
        updates: Sequence[Any] = [0.0] * len(sizes)
        if update_seconds is not None:
            updates = validation.sequence("update_seconds", update_seconds)
        forward: Sequence[Any] = [0.0] * len(sizes)
        if forward_seconds is not None:
            forward = validation.sequence("forward_seconds", forward_seconds)
        shares: Sequence[Any] = [1.0] * len(sizes)
        if density is not None:
            shares = validation.sequence("density", density)
        for field, column in (
            ("compute_seconds", seconds),
            ("names", labels),
            ("dtypes", kinds),
            ("update_seconds", updates),
            ("forward_seconds", forward),
            ("density", shares),
        ):
            if len(column) != len(sizes):
                raise ValueError(
                    f"{field} must have one entry per tensor: num_bytes has {len(sizes)}, "
                    f"got {len(column)}"
                )
        columns = (labels, sizes, seconds, kinds, updates, forward, shares)
        return cls(tuple(map(GradientTensor, *columns)))

    @cached_property
    def num_bytes(self) -> NDArray[np.int64]:
        """Sizes in bytes, shape [L]."""
        return _read_only(np.array([t.num_bytes for t in self.tensors], np.int64))

    @cached_property
    def compute_seconds(self) -> NDArray[np.float64]:
        """Contention-free seconds of backward computation per tensor, shape [L]."""
        return _read_only(np.array([t.compute_seconds for t in self.tensors], np.float64))

    @cached_property
    def bytes_before(self) -> NDArray[np.int64]:
        """Bytes of the first l tensors for l = 0..L, shape [L + 1]."""
        return _read_only(np.concatenate([[0], np.cumsum(self.num_bytes)]))

    @cached_property
    def effective_bytes(self) -> NDArray[np.int64]:
        """Bytes that count in the time of all-reduces, shape [L]; without zeros, `num_bytes`."""
        return _read_only(np.array([t.effective_size(t.num_bytes) for t in self.tensors], np.int64))

    @cached_property
    def effective_before(self) -> NDArray[np.int64]:
        """Sums of `effective_bytes` of the first l tensors for l = 0..L, shape [L + 1]."""
        return _read_only(np.concatenate([[0], np.cumsum(self.effective_bytes)]))

    @cached_property
    def bytes_per_effective(self) -> float:
        """Ratio of all bytes to those that count; 1 without zeros, or without bytes."""
        return float(self.bytes_before[-1]) / max(float(self.effective_before[-1]), 1.0) or 1.0

    @cached_property
    def is_dense(self) -> bool:
        """True if all bytes count: no gradient has zeros that ranks leave out."""
        return all(tensor.density == 1 for tensor in self.tensors)

    def with_density(self, density: Mapping[str, float]) -> "BackwardProfile":
        """Returns the profile with other densities, by name; those of other tensors stay."""
        return replace(
            self,
            tensors=tuple(
                replace(tensor, density=density.get(tensor.name, tensor.density))
                for tensor in self.tensors
            ),
        )

    @cached_property
    def compute_after(self) -> NDArray[np.float64]:
        """Seconds of computation left once l tensors are produced, l = 0..L, shape [L + 1].

        Entry 0 is all of backward computation, the last is exactly 0.
        """
        return _read_only(np.concatenate([np.cumsum(self.compute_seconds[::-1])[::-1], [0.0]]))

    @cached_property
    def updates_before(self) -> NDArray[np.float64]:
        """Seconds of updates of the first l tensors for l = 0..L, shape [L + 1]."""
        return _read_only(np.cumsum([0.0, *(t.update_seconds for t in self.tensors)]))

    @cached_property
    def forward_seconds(self) -> NDArray[np.float64]:
        """Contention-free seconds of forward computation per tensor, shape [L].

        If no tensor's is known, the profile's `rest_seconds` are taken for the forward pass, each
        tensor's in proportion to its backward computation; zeros if they are unknown, too.
        """
        known = np.array([t.forward_seconds for t in self.tensors], np.float64)
        total = self.compute_after[0]
        if self.rest_seconds is not None and not known.any() and total > 0:
            known = self.compute_seconds * (self.rest_seconds / total)
        return _read_only(known)

    def with_owned_updates(self, num_workers: int) -> "BackwardProfile":
        """Returns the profile of ranks that each update one of `num_workers` parts."""
        return replace(
            self,
            tensors=tuple(
                replace(tensor, update_seconds=tensor.update_seconds / num_workers)
                for tensor in self.tensors
            ),
        )

    @property
    def has_updates(self) -> bool:
        """True if updates take time."""
        return bool(self.updates_before[-1] > 0)

    def with_batch(self, factor: float) -> "BackwardProfile":
        """Returns the profile of a batch `factor` times as large; computation grows as much."""
        return replace(
            self,
            rest_seconds=None if self.rest_seconds is None else self.rest_seconds * factor,
            tensors=tuple(
                replace(
                    tensor,
                    compute_seconds=tensor.compute_seconds * factor,
                    forward_seconds=tensor.forward_seconds * factor,
                )
                for tensor in self.tensors
            ),
        )

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names in backward order."""
        return tuple(t.name for t in self.tensors)


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array


# Behind the dtype of rows.
_ROWS = " rows"

_ITEM_BYTES: Mapping[str, int] = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "qint8": 1,
    "quint8": 1,
    "float8_e5m2": 1,
    "float8_e4m3fn": 1,
    "int16": 2,
    "uint16": 2,
    "half": 2,
    "float16": 2,
    "bfloat16": 2,
    "float": 4,
    "float32": 4,
    "int32": 4,
    "uint32": 4,
    "double": 8,
    "float64": 8,
    "int64": 8,
    "uint64": 8,
    "complex64": 8,
    "complex128": 16,
}


def item_bytes(dtype: str | None) -> int | None:
    """Returns the bytes of one element; None for an unknown dtype."""
    return None if dtype is None else _ITEM_BYTES.get(dtype)


def rows_of(dtype: str) -> str:
    """Returns what stands for the dtype of rows of a sparse gradient, such as "float32 rows".

    Ranks gather them, whole and never rounded. Their size is not fixed: `num_bytes` are those of an
    all-reduce that sends as much as ranks have sent while they were measured, 0 before.
    """
    return f"{dtype}{_ROWS}"


def is_rows(dtype: str | None) -> bool:
    """Returns whether a dtype is one of `rows_of`."""
    return dtype is not None and dtype.endswith(_ROWS)
