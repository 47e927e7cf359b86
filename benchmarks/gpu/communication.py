"""All-reduces with a number of communication threads: who tells NCCL, and how."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from benchmarks.gpu.buckets import Bucket
from benchmarks.gpu.device import Device, Transfer
from benchmarks.gpu.tuner import Tuner

# NCCL_NTHREADS of the ranks that run plans: a channel is one block of so many threads that move
# data, so that 128 to 4096 threads are 1 to 32 channels.
THREADS_PER_CHANNEL = 128


# NCCL's policies for channels that it chooses itself, besides its default. "efficiency": as few as
# perform decently. A third one, without channels, serves no all-reduces.
CTA_POLICIES = {"efficiency": 1}


def channels(num_threads: int) -> int:
    """Channels that make up so many threads.

    Raises:
      ValueError: `num_threads` is not a whole number of channels.
    """
    if num_threads < 1 or num_threads % THREADS_PER_CHANNEL:
        raise ValueError(
            f"num_threads must be a multiple of {THREADS_PER_CHANNEL}, got {num_threads}"
        )
    return num_threads // THREADS_PER_CHANNEL


class Communication:
    """All-reduces of one team of ranks.

    With a tuner, each step's all-reduces and their channels are passed to it. With communicators,
    each number of threads has one that has so many channels. With neither, NCCL chooses.

    Attributes:
      num_workers: ranks of the team.
      group: their process group.
      cta_policies: names of the policies that `with_policy` takes.
    """

    def __init__(
        self,
        device: Device,
        group: Any,
        num_workers: int,
        *,
        communicators: Mapping[int, Any] | None = None,
        tuner: Tuner | None = None,
        by_policy: Mapping[str, Any] | None = None,
    ) -> None:
        self.num_workers = num_workers
        self._device = device
        self.group = group
        self._communicators = dict(communicators or {})
        self._tuner = tuner
        self._by_policy = dict(by_policy or {})
        self.cta_policies = tuple(self._by_policy)

    def with_policy(self, name: str | None) -> "Communication":
        """Returns the same ranks' all-reduces under a CTA policy; None is NCCL's default."""
        if name is None:
            return self
        found = copy.copy(self)
        found.group = self._by_policy[name]
        return found

    def begin_step(self, buckets: Sequence[Bucket]) -> None:
        """Announces the all-reduces of a step, in the order in which they will be issued."""
        if self._tuner is not None:
            self._tuner.begin_step([(b.num_bytes, channels(b.num_threads)) for b in buckets])

    def all_reduce(self, tensor: torch.Tensor, num_threads: int, *, ready: bool) -> Transfer:
        """Sums a tensor over the team; unless `ready`, after what was queued before."""
        group = self._communicators.get(num_threads, self.group)
        return self._device.all_reduce(tensor, group, ready=ready)

    def lone(self, tensor: torch.Tensor, num_threads: int, *, ready: bool) -> Transfer:
        """An all-reduce that is a step by itself."""
        num_bytes = tensor.numel() * tensor.element_size()
        self.begin_step([Bucket((0, 1), (0, tensor.numel()), num_bytes, num_threads)])
        return self.all_reduce(tensor, num_threads, ready=ready)
