"""Backward profile: names, sizes and production times of a step's gradients."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tf_libra.internal import validation

_FORMAT = "tf-libra profile"
_VERSION = 1


@dataclass(frozen=True)
class GradientTensor:
    """Gradient of one step.

    Attributes:
      name: unique within a profile.
      num_bytes: size c, at least 0.
      compute_seconds: contention-free seconds b of backward computation between the production of
        the previous tensor and this one (for the first: from the start of backward), at least 0.
      dtype: name of the TensorFlow dtype, such as "float32"; None if unknown.
      update_seconds: contention-free seconds of the optimizer's update after the all-reduce, at
        least 0; 0 if unknown.

    Raises:
      ValueError: a size or a time is negative or not finite.
    """

    name: str
    num_bytes: int
    compute_seconds: float
    dtype: str | None = None
    update_seconds: float = 0.0

    def __post_init__(self) -> None:
        validation.text("name", self.name)
        object.__setattr__(self, "num_bytes", validation.integer("num_bytes", self.num_bytes))
        seconds = validation.real("compute_seconds", self.compute_seconds, minimum=0)
        object.__setattr__(self, "compute_seconds", seconds)
        if self.dtype is not None:
            validation.text("dtype", self.dtype)
        update = validation.real("update_seconds", self.update_seconds, minimum=0)
        object.__setattr__(self, "update_seconds", update)


@dataclass(frozen=True)
class BackwardProfile:
    """Gradients of one step in backward order: tensor 0 is produced first.

    Raises:
      ValueError: no tensor, or two tensors of one name.
    """

    tensors: tuple[GradientTensor, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensors", validation.sequence("tensors", self.tensors))
        if not self.tensors:
            raise ValueError("tensors must hold at least one gradient tensor, got none")
        seen: set[str] = set()
        for index, tensor in enumerate(self.tensors):
            validation.instance(f"tensors[{index}]", tensor, GradientTensor)
            if tensor.name in seen:
                raise ValueError(f"names must be unique, got {tensor.name!r} twice")
            seen.add(tensor.name)
        validation.integer("the sum of num_bytes", sum(t.num_bytes for t in self.tensors))
        validation.real("the sum of compute_seconds", sum(t.compute_seconds for t in self.tensors))
        validation.real("the sum of update_seconds", sum(t.update_seconds for t in self.tensors))

    @classmethod
    def from_arrays(
        cls,
        num_bytes: ArrayLike,
        compute_seconds: ArrayLike,
        names: Sequence[str] | None = None,
        dtypes: Sequence[str] | None = None,
        update_seconds: ArrayLike | None = None,
    ) -> "BackwardProfile":
        """Build a profile of L tensors from columns, in backward order.

        Args:
          num_bytes: sizes, shape [L].
          compute_seconds: contention-free seconds of backward computation, shape [L].
          names: unique names; None: "gradient_0" and so on.
          dtypes: dtype names, None if unknown.
          update_seconds: contention-free seconds of updates, shape [L]; None: zero.

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
        for field, column in (
            ("compute_seconds", seconds),
            ("names", labels),
            ("dtypes", kinds),
            ("update_seconds", updates),
        ):
            if len(column) != len(sizes):
                raise ValueError(
                    f"{field} must have one entry per tensor: num_bytes has {len(sizes)}, "
                    f"got {len(column)}"
                )
        return cls(tuple(map(GradientTensor, labels, sizes, seconds, kinds, updates)))

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
    def compute_after(self) -> NDArray[np.float64]:
        """Seconds of computation left once l tensors are produced, l = 0..L, shape [L + 1].

        Entry 0 is all of backward computation, the last is exactly 0.
        """
        return _read_only(np.concatenate([np.cumsum(self.compute_seconds[::-1])[::-1], [0.0]]))

    @cached_property
    def updates_before(self) -> NDArray[np.float64]:
        """Seconds of updates of the first l tensors for l = 0..L, shape [L + 1]."""
        return _read_only(np.cumsum([0.0, *(t.update_seconds for t in self.tensors)]))

    @property
    def has_updates(self) -> bool:
        """True if updates take time."""
        return bool(self.updates_before[-1] > 0)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names in backward order."""
        return tuple(t.name for t in self.tensors)

    def to_json(self) -> str:
        """Return the profile as JSON text, which `from_json` reads back unchanged."""
        tensors = [
            {"name": t.name, "num_bytes": t.num_bytes, "compute_seconds": t.compute_seconds}
            | ({} if t.dtype is None else {"dtype": t.dtype})
            | ({"update_seconds": t.update_seconds} if t.update_seconds else {})
            for t in self.tensors
        ]
        return json.dumps({"format": _FORMAT, "version": _VERSION, "tensors": tensors}, indent=1)

    @classmethod
    def from_json(cls, document: str) -> "BackwardProfile":
        """Read a profile from JSON text; a `ValueError` names the field that is wrong."""
        value = validation.keys(
            _FORMAT, validation.json_document(_FORMAT, _VERSION, document), required=("tensors",)
        )
        tensors = validation.items("tensors", value["tensors"], GradientTensor)
        return cls(tensors)


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array
