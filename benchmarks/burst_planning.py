"""Measures how long burst planning takes, and compares it with DeepPool's Table 3.

    python -m benchmarks.burst_planning [--repeats 5] [--markdown FILE]

CPU seconds of one thread, `make_burst_plan` alone, the largest of several limits on amplification;
what is meant to be kept is half of the paper's. VGG-16 and Inception-v3 have the published layer
times; for WideResNet-101-2, of which there are none, they are drawn from a fixed seed: once as a
chain of Table 1's 105 layers, once as its 33 blocks with what is added past each (which the paper's
planner, from its times, seems not to have reduced).
"""

import dataclasses
import itertools
import os
import platform
import statistics
import time
from pathlib import Path

import numpy as np
from absl import app, flags

import tf_libra
from benchmarks.deeppool import models
from benchmarks.markdown import table

LIMITS = (1.5, 2.0, 3.0, 4.0, 8.0, None)
GPUS = (8, 1024)
# Table 3, seconds for 8 and for 1024 GPUs.
TABLE_3 = {
    "VGG-16": (0.01, 0.05),
    "WideResNet-101-2": (0.02, 0.11),
    "Inception-v3": (0.22, 3.23),
}


@dataclasses.dataclass(frozen=True)
class Result:
    """One search.

    Attributes:
      network: as in Table 3.
      model: what of it is planned.
      layers: how many.
      gpus: of the cluster.
      cpu_seconds: for the limit that takes longest, the median of the repeats.
      limit: that limit.
      paper_seconds: Table 3's.
    """

    network: str
    model: str
    layers: int
    gpus: int
    cpu_seconds: float
    limit: float | None
    paper_seconds: float


def wide_resnet(counts: tuple[int, ...], blocks: bool) -> tf_libra.ScalingProfile:
    """WideResNet-101-2's shape with drawn times: two layers, 33 of three, and the classifier."""
    rng = np.random.default_rng(0)
    edges, last, layers = [(0, 1)], 1, 2
    for _ in range(33):
        chain = [last, layers, layers + 1, layers + 2]
        edges += itertools.pairwise(chain)
        layers += 3
        if blocks:
            # The addition, to which what came in goes past the three.
            edges += [(chain[-1], layers), (last, layers)]
            layers += 1
        last = layers - 1
    extra = 0 if blocks else 3
    for _ in range(1 + extra):
        edges.append((last, layers))
        last, layers = layers, layers + 1
    samples = np.array(counts)
    alone = rng.uniform(1e-3, 1e-2, (layers, 1))
    compute = alone * (rng.uniform(0.3, 1, (layers, 1)) / samples + 0.02)
    synchronize = rng.uniform(0, 1e-4, (layers, 1)) * (samples > 1)
    moves = rng.uniform(1e-5, 2e-4, (len(edges), len(counts), len(counts)))
    transitions = moves * (1 - np.eye(len(counts)))
    return tf_libra.ScalingProfile.graph(
        counts, compute, synchronize, edges, transitions, moves if blocks else None
    )


def profiles(gpus: int) -> list[tuple[str, str, tf_libra.ScalingProfile]]:
    """Networks of Table 3 and what of them is planned, for counts in powers of two."""
    counts = tuple(2**power for power in range(gpus.bit_length()))
    batch = max(gpus, 32)
    return [
        ("VGG-16", "chain", models.profile("vgg16", counts, batch)),
        ("WideResNet-101-2", "chain", wide_resnet(counts, blocks=False)),
        ("WideResNet-101-2", "33 blocks", wide_resnet(counts, blocks=True)),
        ("Inception-v3", "11 blocks", models.profile("inception_v3", counts, batch)),
    ]


def measure(network: str, model: str, scaling: tf_libra.ScalingProfile, repeats: int) -> Result:
    """Plans under every limit and returns the one that takes longest."""
    longest, at = 0.0, None
    for limit in LIMITS:
        tf_libra.make_burst_plan(scaling, max_amplification=limit)
        seconds = []
        for _ in range(repeats):
            fresh = dataclasses.replace(scaling)  # of which nothing is known yet
            start = time.process_time()
            tf_libra.make_burst_plan(fresh, max_amplification=limit)
            seconds.append(time.process_time() - start)
        if statistics.median(seconds) > longest:
            longest, at = statistics.median(seconds), limit
    gpus = scaling.device_counts[-1]
    paper = TABLE_3[network][GPUS.index(gpus)] if gpus in GPUS else float("nan")
    return Result(network, model, scaling.num_layers, gpus, longest, at, paper)


def markdown(results: list[Result]) -> str:
    """The measurements as a table."""
    rows = [
        (
            result.network,
            result.model,
            result.layers,
            result.gpus,
            f"{result.cpu_seconds:.4f}",
            "none" if result.limit is None else f"{result.limit:g}",
            f"{result.paper_seconds:g}",
            f"{result.paper_seconds / 2:g}",
            "yes" if result.cpu_seconds <= result.paper_seconds / 2 else "no",
        )
        for result in results
    ]
    head = (
        "network", "as", "layers", "GPUs", "CPU seconds", "at limit", "paper, seconds", "half",
        "kept",
    )  # fmt: skip
    where = f"{platform.machine()}, {os.cpu_count()} cores, NumPy {np.__version__}"
    return table(head, rows) + f"\nOne thread; {where}.\n"


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"only flags are accepted, got {argv[1:]}")
    results = [
        measure(*profile, repeats=_REPEATS.value) for gpus in GPUS for profile in profiles(gpus)
    ]
    text = markdown(results)
    print(text)
    if _MARKDOWN.value:
        Path(_MARKDOWN.value).write_text(text)


if __name__ == "__main__":
    _REPEATS = flags.DEFINE_integer("repeats", 5, "searches per limit", 1)
    _MARKDOWN = flags.DEFINE_string("markdown", None, "write the table to this file")
    app.run(main)
