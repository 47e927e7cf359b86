"""Markdown of the results that were measured on GPUs: `python -m benchmarks.gpu.report`.

It fills in the block of docs/gpu_benchmark.md from the folders in benchmarks/gpu/results, one for
each device. Needs neither PyTorch nor a GPU.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu import documents
from benchmarks.markdown import fill, table

RESULTS = Path("benchmarks/gpu/results")
PAGE = Path("docs/gpu_benchmark.md")


def main(argv: Sequence[str] | None = None) -> int:
    """Fills in the page; returns 0."""
    if arguments := sys.argv[1:] if argv is None else argv:
        print(f"gpu report: takes no arguments, got {arguments[0]!r}", file=sys.stderr)
        return 2
    PAGE.write_text(fill(PAGE.read_text(), blocks(RESULTS), prefix="gpu_"))
    return 0


def blocks(results: Path) -> dict[str, str]:
    """Returns the block of the page.

    Args:
        results: holds one folder for each device.

    Raises:
        ValueError: a file is malformed or of a dry run.
    """
    folders = sorted(path for path in results.iterdir() if path.is_dir())
    return {"gpu_results": "\n".join(_device(folder) for folder in folders)}


def _device(folder: Path) -> str:
    environment = documents.load(folder).environment
    found = {
        step: documents.read(folder / f"{step}.json")
        for step in documents.STEPS
        if (folder / f"{step}.json").exists()
    }
    parts = [
        f"{environment['device']}, driver {environment['driver']}, CUDA {environment['cuda']}, "
        f"NCCL {environment['nccl']}, PyTorch {environment['pytorch']}, "
        f"{environment['cores']} cores; sharing: {environment['sharing']}, "
        f"placement: {environment['placement']}.\n"
    ]
    if "channels" in found:
        results = found["channels"]["results"]
        verdict = "as requested" if results["proven"] else results["reason"]
        parts.append(f"Channels: {verdict}, according to {results['written_by']}'s own log.\n")
    if "curves" in found:
        parts.append(_curves(found["curves"]["results"]))
    if "profiles" in found:
        parts.append(_profiles(found["profiles"]))
    if "training" in found:
        for name, model in found["training"]["results"]["models"].items():
            parts.append(_training(name, model))
    return "\n".join(parts)


def _curves(results: Mapping[str, Any]) -> str:
    alone = results["alone"]["curve"]
    threads = sorted({row["num_threads"] for row in alone})
    sizes = sorted({row["num_bytes"] for row in alone})

    def by_threads(curve: Sequence[Mapping[str, Any]], num_bytes: int, text: str) -> list[str]:
        rows = {row["num_threads"]: row for row in curve if row["num_bytes"] == num_bytes}
        return [text.format(**rows[r]) if r in rows else "" for r in threads]

    rows = [
        [f"{size / 2**20:g} MiB", *by_threads(_in_gb(alone), size, "{gigabytes:.2f}")]
        for size in sizes
    ]
    head = ["", *(f"{r} threads" for r in threads)]
    text = f"Bus bandwidth of an all-reduce alone, GB/s:\n\n{table(head, rows)}"
    size = sizes[-1]
    rows = [
        [name, *by_threads(kernel["curve"], size, "{slowdown:.2f}")]
        for name, kernel in results["kernels"].items()
    ]
    return (
        f"{text}\nTime of a kernel during an all-reduce of {size / 2**20:g} MiB, as a multiple of "
        f"its time contention-free:\n\n{table(head, rows)}"
    )


def _in_gb(curve: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "gigabytes": row["bus_bandwidth"] / 1e9} for row in curve]


def _profiles(document: Mapping[str, Any]) -> str:
    wanted = document["settings"]["models"]
    measured = document["results"]["models"]
    texts = [
        f"{name} {model['backward_seconds']['median'] * 1e3:.1f} ms with {model['batch_size']} "
        "samples"
        for name, model in measured.items()
    ]
    left_out = [name for name in wanted if name not in measured]
    text = f"Backward computation on the whole device: {'; '.join(texts)}."
    return f"{text} No time was left for {', '.join(left_out)}.\n" if left_out else f"{text}\n"


def _training(name: str, model: Mapping[str, Any]) -> str:
    rows = []
    for strategy, row in model["strategies"].items():
        ratio, predicted = row["ratios"].get("ddp"), row["predicted_seconds"]
        rows.append(
            (
                f"`{strategy}`",
                row["channels_by"],
                f"{row['backward_seconds']['median'] * 1e3:.1f}",
                "" if predicted is None else f"{predicted * 1e3:.1f}",
                "" if ratio is None else "{median:.2f} ({p10:.2f} to {p90:.2f})".format(**ratio),
                f"{row['step_seconds']['median'] * 1e3:.1f}",
            )
        )
    head = ("strategy", "channels by", "backward, ms", "predicted", "to DDP", "step, ms")
    return (
        f"{name}, {model['batch_size']} samples per rank, {model['rounds']} rounds; largest "
        f"difference of a gradient's norm from DDP's: {_differences(model['gradients'])}:\n\n"
        f"{table(head, rows)}"
    )


def _differences(gradients: Mapping[str, float]) -> str:
    by_value: dict[str, list[str]] = {}
    for strategy, value in gradients.items():
        if strategy != "ddp":
            by_value.setdefault(f"{value:.1%}", []).append(f"`{strategy}`")
    return "; ".join(f"{value} ({', '.join(names)})" for value, names in by_value.items())


if __name__ == "__main__":
    sys.exit(main())
