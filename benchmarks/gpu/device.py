"""Marks in time and all-reduces, on a GPU's streams or, for dry runs, on the CPU.

A mark says when the device came to it, not when Python did. Seconds between marks may be read once
both are done.
"""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist


class Mark(Protocol):
    """A point in time on the device."""

    def done(self) -> bool: ...
    def since(self, earlier: Any) -> float: ...


@dataclass(frozen=True)
class Transfer:
    """An all-reduce under way: from when this rank could start it to when it was done."""

    start: Mark
    end: Mark


class Device(Protocol):
    """A device that runs computation and all-reduces concurrently."""

    torch_device: torch.device

    def mark(self) -> Mark: ...
    def all_reduce(self, tensor: torch.Tensor, group: Any, *, ready: bool) -> Transfer: ...
    def exact(self) -> contextlib.AbstractContextManager[None]: ...
    def join(self) -> None: ...
    def synchronize(self) -> None: ...


class _GpuMark:
    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._event = torch.cuda.Event(enable_timing=True)
        self._event.record(stream)

    def done(self) -> bool:
        return self._event.query()

    def since(self, earlier: "_GpuMark") -> float:
        return earlier._event.elapsed_time(self._event) * 1e-3


class Gpu:
    """The one GPU: computation on the current stream, concurrent all-reduces in order."""

    def __init__(self) -> None:
        self.torch_device = torch.device("cuda", 0)
        torch.cuda.set_device(self.torch_device)
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = True
        torch.backends.cuda.matmul.allow_tf32 = True
        self._transfers = torch.cuda.Stream()

    def mark(self) -> Mark:
        return _GpuMark(torch.cuda.current_stream())

    def all_reduce(self, tensor: torch.Tensor, group: Any, *, ready: bool) -> Transfer:
        """Sums a tensor over a group; unless `ready`, after what the current stream holds now."""
        if not ready:
            self._transfers.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._transfers):
            start = _GpuMark(self._transfers)
            # NCCL has a stream of its own that follows this one, and is followed by it again.
            dist.all_reduce(tensor, group=group, async_op=True).wait()
            return Transfer(start, _GpuMark(self._transfers))

    @contextlib.contextmanager
    def exact(self) -> Iterator[None]:
        """Computes in float32 by algorithms that every process chooses alike, without TF32."""
        cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
        cudnn.benchmark, cudnn.deterministic = False, True
        cudnn.allow_tf32 = matmul.allow_tf32 = False
        try:
            yield
        finally:
            cudnn.benchmark, cudnn.deterministic = True, False
            cudnn.allow_tf32 = matmul.allow_tf32 = True

    def join(self) -> None:
        """The current stream goes on when all all-reduces so far are done."""
        torch.cuda.current_stream().wait_stream(self._transfers)

    def synchronize(self) -> None:
        torch.cuda.synchronize()


class _CpuMark:
    def __init__(self, seconds: float | None = None) -> None:
        self.seconds = seconds

    def done(self) -> bool:
        return self.seconds is not None

    def since(self, earlier: "_CpuMark") -> float:
        assert self.seconds is not None and earlier.seconds is not None
        return self.seconds - earlier.seconds


class Cpu:
    """The processor, with Gloo's threads for all-reduces: for dry runs."""

    def __init__(self) -> None:
        self.torch_device = torch.device("cpu")
        torch.set_num_threads(1)
        self._under_way: list[Any] = []

    def mark(self) -> Mark:
        return _CpuMark(time.perf_counter())

    def all_reduce(self, tensor: torch.Tensor, group: Any, *, ready: bool) -> Transfer:
        del ready  # nothing is queued on a CPU
        end = _CpuMark()
        transfer = Transfer(_CpuMark(time.perf_counter()), end)
        work = dist.all_reduce(tensor, group=group, async_op=True)

        def finish(_: Any) -> None:
            end.seconds = time.perf_counter()

        # The future that `then` returns is done when the mark is set.
        self._under_way.append(work.get_future().then(finish))
        return transfer

    def exact(self) -> contextlib.AbstractContextManager[None]:
        """Changes nothing: all processes compute alike."""
        return contextlib.nullcontext()

    def join(self) -> None:
        while self._under_way:
            self._under_way.pop(0).wait()

    def synchronize(self) -> None:
        self.join()
