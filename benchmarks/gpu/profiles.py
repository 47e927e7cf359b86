"""Step `profiles`: backward computation of each network, tensor by tensor, on the whole GPU."""

import statistics
from typing import Any

import numpy as np
import torch

from benchmarks.gpu import documents, models
from benchmarks.gpu.gradients import FlatGradients, StepMarks, backward_order
from benchmarks.gpu.rank import Context
from tf_libra import BackwardProfile

_WARM_STEPS = 3
_STEPS = 20
_DRY_STEPS = 2


def run(context: Context) -> None:
    """Profiles one network after the other, each written down as soon as it is done."""
    results: dict[str, Any] = {"models": {}}
    context.write(results)
    for name in context.job.models:
        if context.time_left() <= 0:
            context.notes.append(f"{name}: no time was left for it")
            continue
        try:
            results["models"][name] = _profiled(context, name)
        except torch.OutOfMemoryError as error:
            context.notes.append(f"{name}: the GPU's memory is too small, {error}")
        context.write(results)
        if context.device.torch_device.type == "cuda":
            torch.cuda.empty_cache()
    context.write(results, complete=len(results["models"]) == len(context.job.models))


def _profiled(context: Context, name: str) -> dict[str, Any]:
    """Steps of one network on this rank alone."""
    job, device = context.job, context.device
    task = models.make(
        name, device.torch_device, rank=0, dry_run=job.dry_run, batch_factor=job.batch_factor
    )
    gradients = FlatGradients(task.model, backward_order(task.model, task.batch), device)
    steps: list[StepMarks] = []
    for number in range(_WARM_STEPS + (_DRY_STEPS if job.dry_run else _STEPS)):
        if steps and context.time_left() <= 0:
            break
        marks = gradients.step(task.model, task.batch, None, marking=True)
        device.synchronize()
        if number >= _WARM_STEPS:
            steps.append(marks)
    return {
        "batch_size": len(task.batch[0]),
        "steps": len(steps),
        "parameters": sum(gradients.num_bytes) // gradients.item_bytes,
        "forward_seconds": statistics.median(m.backward.since(m.start) for m in steps),
        "backward_seconds": spread([m.computed.since(m.backward) for m in steps]),
        "profile": documents.as_value(backward_profile(gradients, steps)),
    }


def backward_profile(gradients: FlatGradients, steps: list[StepMarks]) -> BackwardProfile:
    """Medians over steps of the time between one gradient and the next.

    A gradient that comes out of its usual order counts from the latest before it, so that no time
    is negative and the sum stays the time of the last one.
    """
    produced = [
        [mark.since(marks.backward) for mark in marks.produced if mark is not None]
        for marks in steps
    ]
    latest = np.maximum.accumulate(np.maximum(produced, 0.0), axis=1)
    seconds = np.median(np.diff(latest, axis=1, prepend=0.0), axis=0)
    return BackwardProfile.from_arrays(
        gradients.num_bytes, seconds.tolist(), gradients.names, ["float32"] * len(gradients.names)
    )


def spread(values: list[float]) -> dict[str, float]:
    """Median, 10th and 90th percentile."""
    p10, median, p90 = np.percentile(values, (10, 50, 90)).tolist()
    return {"median": median, "p10": p10, "p90": p90}
