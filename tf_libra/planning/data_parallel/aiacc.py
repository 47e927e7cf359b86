"""AIACC-Training: gradients packed and sliced into units of one size, on several streams.

Sections V-B and VI. Units, streams and threads are tuned: in training by measured steps
(`tf_libra.autotune.search`), without training by the cost model.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from tf_libra.cost_model import CostModel
from tf_libra.internal import formatting
from tf_libra.internal.values import AtLeastOne, Count, Int32Count, Natural, NonNegative, Value
from tf_libra.planning.arguments import argument
from tf_libra.planning.data_parallel.asc_wfbp import DEFAULT_CONTENTION
from tf_libra.planning.strategy import ChosenThreads, Draft, StreamCounts, ThreadCounts, register
from tf_libra.simulation import simulate
from tf_libra.specs.backward_profile import BackwardProfile, is_rows, item_bytes
from tf_libra.specs.plan import Plan, TensorGroup

# More all-reduces than this in a step are no plan: every one costs a node in the graph, startup,
# and time to rewrite.
MAX_UNITS = 512
# The smallest unit that is tried by itself, and how many sizes are, each half the one before.
LEAST_UNIT_BYTES = 64 * 1024
NUM_SIZES = 8
# Where an element's size is not known.
_ANY_ITEM_BYTES = 16


@dataclass(frozen=True, order=True)
class CommConfig(Value):
    """Size, concurrency and threads of all-reduces (AIACC, section VI).

    Attributes:
      unit_bytes: most bytes of an all-reduce.
      num_streams: number of concurrent all-reduces.
      num_threads: communication threads of each all-reduce.

    Raises:
      ValueError: a number below 1.
    """

    unit_bytes: Count
    num_streams: Int32Count
    num_threads: Int32Count

    @property
    def num_lanes(self) -> int:
        """Number of concurrent communication threads."""
        return self.num_streams * self.num_threads

    def describe(self) -> str:
        """Describe the settings in words."""
        return (
            f"units of {formatting.size(self.unit_bytes)} on {self.num_streams} streams of"
            f" {self.num_threads} threads"
        )


def least_unit(profile: BackwardProfile, unit_bytes: int) -> int:
    """Returns the smallest unit of at least the requested size that gives at most `MAX_UNITS`."""
    total = int(profile.num_bytes.sum())
    if _num_units(profile, unit_bytes) <= MAX_UNITS:
        return unit_bytes
    too_small, enough = unit_bytes, max(total, 1)
    while enough - too_small > 1:
        middle = (too_small + enough) // 2
        if _num_units(profile, middle) <= MAX_UNITS:
            enough = middle
        else:
            too_small = middle
    return enough


def pack(profile: BackwardProfile, setting: CommConfig) -> Draft:
    """Pack and slice the gradients in backward order (section V-B, Algorithm 1).

    A unit packs tensors while they fit. A tensor that is larger than a unit is sliced from its
    beginning, and its rest begins the next unit. Each unit goes to the stream with the fewest bytes
    so far, which is free first. A tensor is cut between two elements, so a unit has at least one.
    If there were more than `MAX_UNITS`, units are larger than requested, and a note says so.
    """
    unit_bytes = least_unit(profile, setting.unit_bytes)
    loads = [0] * setting.num_streams
    groups = []
    for start, start_byte, stop, stop_byte, num_bytes in _units(profile, unit_bytes):
        stream = loads.index(min(loads))
        loads[stream] += num_bytes
        groups.append(
            TensorGroup(start, stop, setting.num_threads, stream, start_byte, stop_byte or None)
        )
    notes = []
    if unit_bytes != setting.unit_bytes:
        notes.append(
            f"units of {setting.unit_bytes} bytes would be more than {MAX_UNITS} all-reduces: they"
            f" have up to {unit_bytes}"
        )
    if len(groups) == 1:
        notes.append(f"one unit of up to {unit_bytes} bytes holds all gradients")
    return Draft(tuple(groups), tuple(notes))


def _num_units(profile: BackwardProfile, unit_bytes: int) -> int:
    count = 0
    for _ in _units(profile, unit_bytes):
        count += 1
        if count > MAX_UNITS:
            break
    return count


def _units(profile: BackwardProfile, unit_bytes: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield (first tensor, start byte, stop tensor, end byte, size) of each unit.

    The stop tensor is exclusive; the end byte lies in the last tensor, 0 for its end.
    """
    start, start_byte, size = 0, 0, 0
    for index, tensor in enumerate(profile.tensors):
        num_bytes = tensor.num_bytes
        if size > 0 and size + num_bytes > unit_bytes:
            yield start, start_byte, index, 0, size
            start, start_byte, size = index, 0, 0
        item = item_bytes(tensor.dtype) or _ANY_ITEM_BYTES
        piece = max(unit_bytes // item, 1) * item
        done = 0
        # An empty unit has packed tensors of 0 bytes at most.
        while num_bytes - done > max(piece, unit_bytes) and not is_rows(tensor.dtype):
            yield start, start_byte, index + 1, done + piece, piece
            done += piece
            start, start_byte = index, done
        size += num_bytes - done
    if start < len(profile.tensors):
        yield start, start_byte, len(profile.tensors), 0, size


def sizes_to_try(total_bytes: int) -> tuple[int, ...]:
    """Returns unit sizes, ascending: the total, half of it, and so on."""
    sizes = [max(total_bytes, 1)]
    while len(sizes) < NUM_SIZES and sizes[-1] // 2 >= LEAST_UNIT_BYTES:
        sizes.append(-(-sizes[-1] // 2))
    return tuple(reversed(sizes))


@register
@dataclass(frozen=True, kw_only=True)
class Aiacc(ChosenThreads):
    """AIACC-Training's packing, slicing and streams, tuned while training."""

    name: ClassVar[str] = "aiacc"
    tuned_by: ClassVar[str] = "search"
    tuning_steps: ClassVar[int] = 100
    tuning_seconds: ClassVar[float] = 50.0
    threads: ThreadCounts = argument(
        (1, 2),
        "thread counts per stream in the search. The paper has one.",
    )
    streams: StreamCounts = argument(
        (1, 2, 4),
        "numbers of concurrent all-reduces in the search, sorted.",
    )
    unit_bytes: Count | None = argument(None, "bytes of a unit; None: tuned.")
    contention: AtLeastOne | None = argument(
        None,
        "gamma, the slowdown of transmission while two all-reduces run concurrently, for "
        "plans by the cost model. None: 1.5. Measured trials need no gamma.",
    )
    exploration: NonNegative = argument(0.2, "C of the bandit (section VI).", in_training=True)
    seed: Natural = argument(0, "seed of the searchers.", in_training=True)

    @property
    def num_streams(self) -> int:
        """Most concurrent all-reduces of the search space."""
        return max(self.streams)

    def unit_sizes(self, profile: BackwardProfile) -> tuple[int, ...]:
        """Returns the unit sizes of the search space, ascending."""
        if self.unit_bytes is not None:
            return (self.unit_bytes,)
        return sizes_to_try(int(profile.num_bytes.sum()))

    def pack(self, profile: BackwardProfile, setting: CommConfig) -> Draft:
        """Pack as the function `pack`."""
        return pack(profile, setting)

    def draft(self, profile: BackwardProfile, cost: CostModel) -> Draft:
        """Plan with the best settings by the cost model: unit size, then streams, then threads.

        Raises:
          ValueError: no thread count leaves computation resources under the cost model.
        """
        gamma = DEFAULT_CONTENTION if self.contention is None else self.contention
        known: dict[CommConfig, float | None] = {}
        problems: list[str] = []

        def seconds(setting: CommConfig) -> float | None:
            if setting not in known:
                known[setting] = None
                try:
                    groups = pack(profile, setting).groups
                    plan = Plan.for_profile(
                        profile, groups, cost.num_workers, self.name, contention=gamma
                    )
                    known[setting] = simulate(profile, plan, cost).step_seconds
                except ValueError as error:  # a rate that is not positive
                    problems.append(str(error))
            return known[setting]

        def best(settings: Iterable[CommConfig]) -> CommConfig | None:
            timed = [(s, config) for config in settings if (s := seconds(config)) is not None]
            return min(timed)[1] if timed else None

        sizes, few, least = self.unit_sizes(profile), self.streams[0], self.threads[0]
        found = best(CommConfig(size, few, least) for size in sizes)
        if found is None:
            raise ValueError(problems[0])
        before = None
        while found != before and found is not None:
            before = found
            size, streams, threads = found.unit_bytes, found.num_streams, found.num_threads
            others = [CommConfig(size, s, r) for s in self.streams for r in self.threads]
            others += [CommConfig(other, streams, threads) for other in sizes]
            found = best([found, *others])
        assert found is not None
        packed = pack(profile, found)
        return Draft(packed.groups, (found.describe(), *packed.notes), gamma)
