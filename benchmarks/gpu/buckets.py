"""From a plan to ranges of one flat gradient buffer. Pure functions.

Gradients lie in the buffer in backward order, so that a group of a plan is one contiguous range and
is all-reduced where it lies.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tf_libra import Plan, TensorGroup
from tf_libra.specs.plan import check_whole_tensors

# torch.nn.parallel.DistributedDataParallel's defaults.
DDP_FIRST_BYTES = 1024**2
DDP_BYTES = 25 * 1024**2


@dataclass(frozen=True)
class Bucket:
    """One all-reduce of a step.

    Attributes:
      tensors: indices of its first tensor and one past the last, in backward order.
      elements: the same of its elements in the flat buffer.
      num_bytes: its size.
      num_threads: communication threads.
    """

    tensors: tuple[int, int]
    elements: tuple[int, int]
    num_bytes: int
    num_threads: int


def buckets(plan: Plan, item_bytes: int) -> tuple[Bucket, ...]:
    """The all-reduces of a plan in the order of their launch.

    Raises:
      ValueError: a tensor is not a whole number of elements, or the plan cuts one.
    """
    check_whole_tensors(plan, "benchmarks.gpu")
    before = [0]
    for name, num_bytes in zip(plan.tensor_names, plan.num_bytes, strict=True):
        if num_bytes % item_bytes:
            raise ValueError(f"num_bytes of {name!r} must be a multiple of {item_bytes}")
        before.append(before[-1] + num_bytes // item_bytes)
    return tuple(
        Bucket(
            tensors=(group.start, group.stop),
            elements=(before[group.start], before[group.stop]),
            num_bytes=(before[group.stop] - before[group.start]) * item_bytes,
            num_threads=group.num_threads,
        )
        for group in plan.groups
    )


class Launcher:
    """Says which buckets may go when a gradient is there: in the plan's order, each once a step.

    A group is launched when all of its tensors are produced and the group before it is launched.
    With `after_backward` none goes before the last gradient of the step.
    """

    def __init__(self, plan_buckets: Sequence[Bucket], *, after_backward: bool = False) -> None:
        self._buckets = tuple(plan_buckets)
        self._after_backward = after_backward
        self._bucket_of = [
            index
            for index, bucket in enumerate(self._buckets)
            for _ in range(bucket.tensors[1] - bucket.tensors[0])
        ]
        self.restart()

    def restart(self) -> None:
        """Begins a step."""
        self._missing = [bucket.tensors[1] - bucket.tensors[0] for bucket in self._buckets]
        self._produced = 0
        self._next = 0

    def produced(self, tensor: int) -> tuple[int, ...]:
        """Takes note of a gradient; returns the indices of the buckets to launch now, in order.

        Raises:
          ValueError: more gradients of a group were produced than it has tensors.
        """
        bucket = self._bucket_of[tensor]
        if not self._missing[bucket]:
            raise ValueError(f"tensor {tensor} was produced twice in one step")
        self._missing[bucket] -= 1
        self._produced += 1
        if self._after_backward and self._produced < len(self._bucket_of):
            return ()
        first = self._next
        while self._next < len(self._buckets) and not self._missing[self._next]:
            self._next += 1
        return tuple(range(first, self._next))

    @property
    def is_complete(self) -> bool:
        """Returns whether every bucket of the step was launched."""
        return self._next == len(self._buckets)


def ddp_groups(num_bytes: Sequence[int], num_threads: int) -> tuple[TensorGroup, ...]:
    """The groups that PyTorch's DDP makes of gradients in backward order.

    A bucket is closed by the tensor that reaches its limit: 1 MiB for the first bucket, 25 MiB for
    all others.
    """
    groups: list[TensorGroup] = []
    start = filled = 0
    for index, size in enumerate(num_bytes):
        filled += size
        if filled >= (DDP_BYTES if groups else DDP_FIRST_BYTES) or index == len(num_bytes) - 1:
            groups.append(TensorGroup(start, index + 1, num_threads))
            start, filled = index + 1, 0
    return tuple(groups)
