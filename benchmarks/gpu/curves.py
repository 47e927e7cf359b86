"""Step `curves`: slowdown of computation and transmission rate against communication threads.

Both ranks compute, and both all-reduce concurrently. A round measures every kernel with every size
and number of threads, in an order that is drawn again for each round: first the kernel alone, for
its contention-free seconds, then all-reduces that lie wholly within computation, then all-reduces
alone.
"""

import random
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from benchmarks.gpu import documents
from benchmarks.gpu.device import Mark, Transfer
from benchmarks.gpu.overlap import Progress, Span, bus_bandwidth, last_to_arrive, sample
from benchmarks.gpu.rank import Context
from tf_libra import OverlapSample
from tf_libra.cost_model import fit

_ITEM_BYTES = 4
_SIZES = (2**16, 2**20, 2**24, 2**26)
_DRY_SIZES = (2**14, 2**18)
# A unit of work between two marks: much longer than a mark takes, much shorter than an all-reduce.
_UNIT_SECONDS = 2e-4
_UNITS_ALONE = 30
# Units queued ahead of the device, so that it never waits for Python.
_AHEAD = 6
_LEAD = 2
_MOST_UNITS = 20_000
_ALONE = "alone"


@dataclass(frozen=True)
class _Kernel:
    """A unit of work: `times` calls."""

    call: Callable[[], Any]
    times: int

    def unit(self) -> None:
        for _ in range(self.times):
            self.call()


def run(context: Context) -> None:
    """Measures rounds until the time is up, and repeats the fit after each round."""
    job, device = context.job, context.device
    sizes = _DRY_SIZES if job.dry_run else _SIZES
    kernels = {name: _calibrated(context, call) for name, call in _calls(context)}
    payload = torch.zeros(max(sizes) // _ITEM_BYTES, device=device.torch_device)
    for count in job.threads:  # connections are made when first used
        context.communication.lone(payload, count, ready=True)
        device.join()
    context.barrier()
    measured: dict[str, list[OverlapSample]] = {name: [] for name in (*kernels, _ALONE)}
    units: dict[str, list[float]] = {name: [] for name in kernels}
    order = random.Random(job.seed)
    rounds = 0
    longest = 0.0
    # Half a round in hand: the last one may meet a busy moment.
    while context.goes_on(1.5 * longest):
        began = context.time_left()
        for name in _shuffled(order, [*kernels, _ALONE]):
            kernel = kernels.get(name)
            unit_seconds = None
            if kernel is not None:
                unit_seconds = _unit_seconds(context, kernel)
                units[name].append(unit_seconds)
            for size, threads in _shuffled(order, [(c, r) for c in sizes for r in job.threads]):
                sample = _measure(context, kernel, unit_seconds, payload, size, threads, rounds)
                if sample is not None:
                    measured[name].append(sample)
        rounds += 1
        longest = context.agree(max(longest, began - context.time_left()))
        context.write(_results(context, measured, units, kernels, rounds))
        if job.dry_run and rounds == 2:
            break
    context.write(_results(context, measured, units, kernels, rounds), complete=rounds > 0)


def _calls(context: Context) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Kernels of backward computation: by arithmetic, by memory, and between."""
    device, dry = context.device.torch_device, context.job.dry_run
    images, channels, side = (1, 8, 16) if dry else (16, 128, 56)
    inputs = torch.randn(images, channels, side, side, device=device)
    weights = torch.randn(channels, channels, 3, 3, device=device)
    yield "convolution", lambda: functional.conv2d(inputs, weights, padding=1)
    width = 64 if dry else 2048
    left = torch.randn(width, width, device=device)
    right = torch.randn(width, width, device=device)
    yield "matrix product", lambda: torch.mm(left, right)
    rows, columns = (64, 64) if dry else (16384, 1024)
    values = torch.randn(rows, columns, device=device)
    yield "normalisation", lambda: functional.layer_norm(values, (columns,))


def _calibrated(context: Context, call: Callable[[], Any]) -> _Kernel:
    """As many calls as make a unit, the same on all ranks."""
    device = context.device
    for _ in range(5):
        call()
    context.barrier()
    calls = 20
    start = device.mark()
    for _ in range(calls):
        call()
    end = device.mark()
    device.synchronize()
    seconds = context.agree(end.since(start)) / calls
    return _Kernel(call, max(1, round(_UNIT_SECONDS / max(seconds, 1e-7))))


def _unit_seconds(context: Context, kernel: _Kernel) -> float:
    """Contention-free seconds of a unit, with the other ranks computing as well.

    Their slowest rank counts: that one is at work when all are.
    """
    device = context.device
    context.barrier()
    marks = [device.mark()]
    for _ in range(_UNITS_ALONE):
        kernel.unit()
        marks.append(device.mark())
    device.synchronize()
    # The ends are left out, where the other ranks may not have begun, or have ended.
    trim = _UNITS_ALONE // 4
    mine = marks[-1 - trim].since(marks[trim]) / (_UNITS_ALONE - 2 * trim)
    return max(context.gather(mine))


def _measure(
    context: Context,
    kernel: _Kernel | None,
    unit_seconds: float | None,
    payload: torch.Tensor,
    num_bytes: int,
    num_threads: int,
    number: int,
) -> OverlapSample | None:
    """Measures an all-reduce, either alone or within concurrent computation."""
    device = context.device
    part = payload[: num_bytes // _ITEM_BYTES]
    context.barrier()
    origin = device.mark()
    marks = [origin]
    if kernel is not None:
        for _ in range(_LEAD):
            kernel.unit()
            marks.append(device.mark())
    transfer = context.communication.lone(part, num_threads, ready=True)
    if kernel is not None:
        _compute_until(transfer, kernel, context, marks)
    device.join()
    device.synchronize()
    span = Span(transfer.start.since(origin), transfer.end.since(origin))
    progress = None
    if kernel is not None and unit_seconds is not None:
        done = tuple(unit_seconds * index for index in range(len(marks)))
        progress = Progress(tuple(mark.since(origin) for mark in marks), done)
    seen = context.gather((span, progress))
    span, progress = seen[last_to_arrive([sample for sample, _ in seen])]
    return sample(span, progress, num_bytes, num_threads, step=number)


def _compute_until(
    transfer: Transfer, kernel: _Kernel, context: Context, marks: list[Mark]
) -> None:
    """Keeps the device busy until the all-reduce is done, a few units ahead of it."""
    while len(marks) < _MOST_UNITS and not transfer.end.done():
        if len(marks) > _AHEAD and not marks[-_AHEAD].done():
            continue
        kernel.unit()
        marks.append(context.device.mark())
    # One more, so that computation is seen to go on beyond the end.
    kernel.unit()
    marks.append(context.device.mark())


def _results(
    context: Context,
    measured: dict[str, list[OverlapSample]],
    units: dict[str, list[float]],
    kernels: dict[str, _Kernel],
    rounds: int,
) -> dict[str, Any]:
    workers = context.communication.num_workers
    alone = measured[_ALONE]
    everything = [sample for samples in measured.values() for sample in samples]
    return {
        "rounds": rounds,
        "alone": {
            "curve": _curve(alone, workers),
            "samples": [documents.sample_value(sample) for sample in alone],
        },
        "kernels": {
            name: {
                "calls_per_unit": kernel.times,
                "unit_seconds": statistics.median(units[name]) if units[name] else None,
                "curve": _curve(measured[name], workers),
                "samples": [documents.sample_value(sample) for sample in measured[name]],
                **_fitted([*measured[name], *alone], workers),
            }
            for name, kernel in kernels.items()
        },
        **_fitted(everything, workers),
    }


def _curve(samples: list[OverlapSample], workers: int) -> list[dict[str, Any]]:
    """Medians by size and threads: seconds, bus bandwidth, and how much slower computation was."""
    keys = sorted({(sample.num_bytes, sample.num_threads) for sample in samples})
    rows = []
    for num_bytes, num_threads in keys:
        chosen = [s for s in samples if (s.num_bytes, s.num_threads) == (num_bytes, num_threads)]
        seconds = statistics.median(sample.wall_seconds for sample in chosen)
        slowdowns = [s.overlap_seconds / s.compute_seconds for s in chosen if s.compute_seconds]
        rows.append(
            {
                "num_bytes": num_bytes,
                "num_threads": num_threads,
                "samples": len(chosen),
                "seconds": seconds,
                "bus_bandwidth": bus_bandwidth(num_bytes, seconds, workers),
                "slowdown": statistics.median(slowdowns) if slowdowns else None,
            }
        )
    return rows


def _fitted(samples: list[OverlapSample], workers: int) -> dict[str, Any]:
    """The contention model of some samples, and how well it meets them."""
    if not samples:
        return {"cost_model": None}
    try:
        found = fit(samples, workers)
    except ValueError as problem:  # the samples are worth keeping without a model
        return {"cost_model": None, "fit_problem": str(problem)}
    return {
        "cost_model": documents.as_value(found.model),
        "median_error": found.median_error,
        "median_computation_error": found.median_computation_error,
        "fit_notes": list(found.notes),
        "fit_warnings": list(found.warnings),
    }


def _shuffled(order: random.Random, values: list[Any]) -> list[Any]:
    """A copy in an order that is the same on all ranks."""
    return order.sample(values, len(values))
