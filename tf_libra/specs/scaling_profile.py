"""Scaling profile: layer times per device count, and costs of changing the count."""

import hashlib
import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tf_libra.internal import validation
from tf_libra.internal.codec import Document
from tf_libra.internal.values import Count, Names

# Largest cluster; plans list the schedule of each device.
MOST_DEVICES = 1 << 20


def check_device_counts(field: str, value: Any) -> tuple[int, ...]:
    """Returns device counts, ascending, from 1, or raises `ValueError`."""
    counts = validation.integers(field, value, 1, MOST_DEVICES)
    if not counts or counts[0] != 1:
        raise ValueError(f"{field} must begin with 1, got {counts}")
    for before, after in itertools.pairwise(counts):
        if after <= before:
            raise ValueError(f"{field} must be ascending, got {after} after {before}")
    return counts


DeviceCounts = Annotated[tuple[int, ...], check_device_counts]


@dataclass(frozen=True, eq=False)
class ScalingProfile(Document):
    """Times of a model's layers at every allowed device count (DeepPool 4.1).

    The batch of an iteration is the same for every device count: strong scaling. Profiles with
    equal content are equal.

    Attributes:
      device_counts: the G allowed device counts, ascending, from 1. The last one is the cluster's
        size.
      names: unique names of the L layers.
      edges: the E pairs (i, j) of layers: layer j reads the output of layer i.
      compute_seconds: comp(i, g), forward and backward of the whole batch, shape [L, G].
      synchronize_seconds: sync(i, g), the all-reduce of the layer's gradients, shape [L, G].
      transition_seconds: comm from g devices of an edge's source to h of its target, both ways,
        with the smaller set inside of the larger, shape [E, G, G].
      move_seconds: the same for disjoint sets of devices, shape [E, G, G]. None: branches cannot
        run in parallel.
      batch: examples per iteration, divisible by every device count; None if unknown.

    Raises:
      ValueError: a field of the wrong shape or out of its range, or edges that form a cycle.
    """

    device_counts: DeviceCounts
    names: Names
    edges: Annotated[tuple[tuple[int, int], ...], validation.sequence]
    compute_seconds: NDArray[np.float64]
    synchronize_seconds: NDArray[np.float64]
    transition_seconds: NDArray[np.float64]
    move_seconds: NDArray[np.float64] | None = None
    batch: Count | None = None

    FORMAT: ClassVar = "tf-libra scaling profile"
    SPARSE: ClassVar = ("move_seconds", "batch")

    def _validate(self) -> None:
        if not self.names:
            raise ValueError("names must hold at least one layer, got none")
        edges = _edges(self.edges, len(self.names))
        L, G, E = len(self.names), len(self.device_counts), len(edges)
        object.__setattr__(self, "edges", edges)
        for field, shape in (
            ("compute_seconds", (L, G)),
            ("synchronize_seconds", (L, G)),
            ("transition_seconds", (E, G, G)),
            ("move_seconds", (E, G, G)),
        ):
            value = getattr(self, field)
            if field != "move_seconds" or value is not None:
                object.__setattr__(self, field, _times(field, value, shape))
        for count in self.device_counts:
            if self.batch is not None and self.batch % count:
                raise ValueError(
                    f"device_counts must divide the batch of {self.batch}, got {count}, which "
                    "does not"
                )
        _in_order(edges, self.names)

    @classmethod
    def chain(
        cls,
        device_counts: Sequence[int],
        compute_seconds: ArrayLike,
        synchronize_seconds: ArrayLike,
        transition_seconds: ArrayLike,
        names: Sequence[str] | None = None,
        *,
        batch: int | None = None,
    ) -> "ScalingProfile":
        """Returns the profile of L sequential layers.

        Args:
          device_counts: allowed device counts, ascending, from 1, shape [G].
          compute_seconds: forward and backward of the whole batch, shape [L, G].
          synchronize_seconds: the all-reduce of the layer's gradients, shape [L, G].
          transition_seconds: from g devices of layer i to h of layer i + 1, shape [L-1, G, G].
          names: unique names; None: "layer_0" and so on.
          batch: examples per iteration; None if unknown.

        Raises:
          ValueError: as for the class.
        """
        layers = len(validation.sequence("compute_seconds", compute_seconds))
        edges = [(i, i + 1) for i in range(layers - 1)]
        return cls.graph(
            device_counts,
            compute_seconds,
            synchronize_seconds,
            edges,
            transition_seconds,
            names=names,
            batch=batch,
        )

    @classmethod
    def graph(
        cls,
        device_counts: Sequence[int],
        compute_seconds: ArrayLike,
        synchronize_seconds: ArrayLike,
        edges: Sequence[tuple[int, int]],
        transition_seconds: ArrayLike,
        move_seconds: ArrayLike | None = None,
        names: Sequence[str] | None = None,
        *,
        batch: int | None = None,
    ) -> "ScalingProfile":
        """Returns the profile of L layers with branches.

        Args:
          device_counts: as in `chain`.
          compute_seconds: as in `chain`.
          synchronize_seconds: as in `chain`.
          edges: pairs (i, j): layer j reads the output of layer i. Acyclic.
          transition_seconds: per edge from g devices to h, shape [E, G, G].
          move_seconds: per edge from g devices to h other devices, shape [E, G, G]; None: every
            branch runs on the devices of its block.
          names: as in `chain`.
          batch: as in `chain`.

        Raises:
          ValueError: as for the class.
        """
        layers = len(validation.sequence("compute_seconds", compute_seconds))
        labels = [f"layer_{i}" for i in range(layers)] if names is None else names
        if len(validation.sequence("names", labels)) != layers:
            raise ValueError(
                f"names must have one entry per layer: compute_seconds has {layers}, "
                f"got {len(labels)}"
            )
        return cls(
            device_counts,  # type: ignore[arg-type]  # the class checks what it is given
            labels,  # type: ignore[arg-type]
            edges,  # type: ignore[arg-type]
            compute_seconds,  # type: ignore[arg-type]
            synchronize_seconds,  # type: ignore[arg-type]
            transition_seconds,  # type: ignore[arg-type]
            move_seconds,  # type: ignore[arg-type]
            batch,
        )

    @property
    def num_layers(self) -> int:
        """Number L of layers."""
        return len(self.names)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Layers in topological order, ties by index."""
        return _in_order(self.edges, self.names)

    @property
    def is_chain(self) -> bool:
        """True if every layer i + 1 reads layer i and no other."""
        return self.edges == tuple((i, i + 1) for i in range(self.num_layers - 1))

    def index(self, num_devices: int) -> int:
        """Returns the position of a device count in `device_counts`, or raises `ValueError`."""
        count = validation.integer("num_devices", num_devices, 1)
        if count not in self.device_counts:
            raise ValueError(f"num_devices must be one of {self.device_counts}, got {count}")
        return self.device_counts.index(count)

    @cached_property
    def fingerprint(self) -> str:
        """Hexadecimal SHA-256 of the content."""
        described = [
            self.FORMAT,
            self.VERSION,
            self.device_counts,
            self.names,
            self.edges,
            self.batch,
        ]
        digest = hashlib.sha256(json.dumps(described, separators=(",", ":")).encode())
        times = [self.compute_seconds, self.synchronize_seconds, self.transition_seconds]
        if self.move_seconds is not None:
            times.append(self.move_seconds)
        for array in times:
            # Zeros of both signs are equal.
            digest.update((array + 0.0).astype("<f8").tobytes())
        return digest.hexdigest()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ScalingProfile):
            return NotImplemented
        return self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)


def _edges(value: Any, layers: int) -> tuple[tuple[int, int], ...]:
    edges = []
    for index, pair in enumerate(validation.sequence("edges", value)):
        field = f"edges[{index}]"
        ends = validation.sequence(field, pair)
        if len(ends) != 2:
            raise ValueError(f"{field} must be a pair of layers, got {ends}")
        source, target = (validation.integer(field, end, 0, layers - 1) for end in ends)
        edges.append((source, target))
    if len(set(edges)) < len(edges):
        twice = next(edge for i, edge in enumerate(edges) if edge in edges[:i])
        raise ValueError(f"edges must be unique, got {twice} twice")
    return tuple(edges)


def _times(field: str, value: Any, shape: tuple[int, ...]) -> NDArray[np.float64]:
    letters = {2: "[L, G]", 3: "[E, G, G]"}[len(shape)]
    try:
        original = value if isinstance(value, np.ndarray) else np.array(value, object)
        if original.dtype.kind not in "iufO":
            raise TypeError
        array = original.astype(np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{field} must be numbers of shape {letters} = {list(shape)}") from None
    except OverflowError:  # an integer beyond all floats
        raise ValueError(f"{field} must be finite numbers of seconds, got one too large") from None
    if original.dtype == object:  # NumPy takes true for 1, "4" for 4 and null for NaN
        for position, number in np.ndenumerate(original):
            if number is None or isinstance(number, (bool, np.bool_, str, bytes)):
                raise ValueError(
                    f"{field}{_indices(position)} must be a finite number of seconds, at least 0, "
                    f"got {number!r}"
                )
    if 0 in shape and array.size == 0:
        array = array.reshape(shape)
    if array.shape != shape:
        raise ValueError(
            f"{field} must have the shape {letters} = {list(shape)}, got {list(array.shape)}"
        )
    wrong = np.argwhere(~(np.isfinite(array) & (array >= 0)))
    if len(wrong):
        raise ValueError(
            f"{field}{_indices(wrong[0])} must be a finite number of seconds, at least 0, "
            f"got {array[tuple(wrong[0])]}"
        )
    with np.errstate(over="ignore"):
        validation.real(f"the sum of {field}", float(array.sum()))
    array.flags.writeable = False
    return array


def _indices(position: Iterable[int]) -> str:
    return "".join(f"[{index}]" for index in position)


def _in_order(edges: Sequence[tuple[int, int]], names: Sequence[str]) -> tuple[int, ...]:
    """Returns the layers in topological order, or raises `ValueError` that names a cycle."""
    targets: list[list[int]] = [[] for _ in names]
    missing = [0] * len(names)
    for source, target in edges:
        targets[source].append(target)
        missing[target] += 1
    ready = [layer for layer in reversed(range(len(names))) if not missing[layer]]
    order = []
    while ready:
        layer = ready.pop()
        order.append(layer)
        for target in sorted(targets[layer], reverse=True):
            missing[target] -= 1
            if not missing[target]:
                ready.append(target)
    if len(order) < len(names):
        raise ValueError(f"edges must be without cycles, got {_cycle(targets, missing, names)}")
    return tuple(order)


def _cycle(targets: list[list[int]], missing: list[int], names: Sequence[str]) -> str:
    sources: dict[int, int] = {}
    for source, ends in enumerate(targets):
        for target in ends:
            if missing[source] and missing[target]:
                sources[target] = source
    # Every remaining layer reads a remaining one, so walking backwards finds a cycle.
    layer, seen = next(iter(sources)), []
    while layer not in seen:
        seen.append(layer)
        layer = sources[layer]
    cycle = [*reversed(seen[seen.index(layer) :])]
    return " -> ".join(names[i] for i in [*cycle, cycle[0]])
