"""Step `channels`: NCCL's own log says how many channels each all-reduce used."""

import math
from typing import Any

import torch

from benchmarks.gpu import nccl_log
from benchmarks.gpu.buckets import Bucket
from benchmarks.gpu.communication import channels
from benchmarks.gpu.launch import nccl_log as log_path
from benchmarks.gpu.rank import Context
from benchmarks.gpu.tuner import StandIn

_ITEM_BYTES = 4  # float32
# Each number of channels at each size; then all at one size in one step, so that only their order
# distinguishes equal sizes.
_LARGE = 16 * 2**20
_SIZES = (_LARGE, 4 * 2**20)
_LOG_LINES = 60


def run(context: Context) -> None:
    """Issues all-reduces with known channels on every rank, then reads rank 0's log."""
    job = context.job
    largest = max(_SIZES) // (64 if job.dry_run else 1)
    sizes = [size // (64 if job.dry_run else 1) for size in _SIZES]
    steps = [[(size, threads)] for size in sizes for threads in job.threads]
    steps.append([(largest, threads) for threads in (*job.threads, *job.threads[::-1])])
    tensor = torch.zeros(largest // _ITEM_BYTES, device=context.device.torch_device)
    stand_in = None
    if job.dry_run and context.tuner is not None:
        stand_in = StandIn(context.tuner, context.communication.num_workers)
    requested: list[nccl_log.RequestedChannels] = []
    lines: list[str] = []
    for step in steps:
        buckets = [Bucket((0, 1), (0, size // _ITEM_BYTES), size, r) for size, r in step]
        context.communication.begin_step(buckets)
        for bucket in buckets:
            part = tensor[: bucket.elements[1]]
            context.communication.all_reduce(part, bucket.num_threads, ready=True)
            requested.append(
                nccl_log.RequestedChannels(bucket.num_bytes, channels(bucket.num_threads))
            )
            if stand_in is not None:
                lines.append(stand_in.line(bucket.num_bytes))
        context.device.join()
    context.barrier()
    if job.rank != 0:
        return
    text = "\n".join(lines)
    if not job.dry_run and log_path(job).exists():
        text = log_path(job).read_text(errors="replace")
    context.write(_results(context, requested, text), complete=True)


def _results(
    context: Context, requested: list[nccl_log.RequestedChannels], text: str
) -> dict[str, Any]:
    verdict = nccl_log.compare(requested, nccl_log.parse(text))
    logged = [line for line in text.splitlines() if "Bytes -> Algo" in line]
    tuning = [line for line in text.splitlines() if "tuner" in line.lower() or "NTHREADS" in line]
    counters = None if context.tuner is None else context.tuner.counters()
    share = math.nan
    if verdict["rows"]:
        share = sum(row["as_requested"] is True for row in verdict["rows"]) / len(verdict["rows"])
    return {
        "method": context.job.method,
        "written_by": "the plugin's stand-in for NCCL" if context.job.dry_run else "NCCL",
        **verdict,
        "share_as_requested": None if math.isnan(share) else share,
        "tuner_counters": counters,
        "log": (tuning + logged)[:_LOG_LINES],
    }
