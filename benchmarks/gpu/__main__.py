"""The GPU benchmark: `python -m benchmarks.gpu --out DIR` (docs/gpu_benchmark.md).

Needs PyTorch, NumPy, SciPy and a C++ compiler; neither TensorFlow nor Horovod. Each step can be had
alone (`--steps`), has a share of the time, and writes its own file:

        channels.json   from NCCL's own log: does NCCL use the requested channels?
    curves.json     computation's slowdown and transmission rate against threads, with the fit
    profiles.json   backward computation of each network, tensor by tensor
    training.json   plans against DDP and against NCCL's own channels, predicted and measured
    run.json        how each step ended, and what was said where one did not end well

`--dry-run` does all of it on the processor, with Gloo in place of NCCL and small networks: nothing
it writes is a measurement of anything.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# How the time is shared out; what a step leaves over goes to those after it.
_SHARES = {"channels": 0.08, "curves": 0.21, "profiles": 0.11, "training": 0.60}
_THREADS = (128, 256, 512, 1024, 2048, 4096)
_MODELS = ("vgg16", "resnet152", "xception", "bert_base")
_METHODS = ("tuner", "communicators")
_PLACEMENTS = ("auto", "multi-rank", "host ids")
_NEEDED = ("torch", "numpy", "scipy")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the steps; returns 0 if all of them ended well."""
    options = _options(argv)
    for problem in _missing(dry_run=options.dry_run):
        print(f"gpu: {problem}", file=sys.stderr)
        return 2
    # These need what was just looked for.
    from benchmarks.gpu import runner

    options.out.mkdir(parents=True, exist_ok=True)
    began = time.time()
    report: dict[str, Any] = {"steps": {}, "problems": [], "notes": []}

    def keep() -> None:
        report["seconds"] = round(time.time() - began, 1)
        (options.out / "run.json").write_text(json.dumps(report, indent=1) + "\n")

    with (
        tempfile.TemporaryDirectory(prefix="gpu-benchmark-") as folder,
        runner.prepared(options, Path(folder), report) as bench,
    ):
        left = [step for step in _SHARES if step in options.steps]
        while left:
            step = left.pop(0)
            share = _SHARES[step] / sum(_SHARES[name] for name in (step, *left))
            seconds = share * (began + options.budget - time.time())
            started = time.time()
            print(f"gpu: {step}, {seconds:.0f} s", flush=True)
            problems = bench.step(step, seconds)
            report["steps"][step] = {
                "ended_well": not problems,
                "seconds": round(time.time() - started, 1),
                "budget_seconds": round(seconds, 1),
            }
            report["problems"] += problems
            keep()
            for problem in problems:
                print(f"gpu: {problem}", file=sys.stderr, flush=True)
    keep()
    print(runner.summary(options.out, report))
    return 0 if all(outcome["ended_well"] for outcome in report["steps"].values()) else 1


@dataclass(frozen=True)
class Options:
    """Options of the command line."""

    out: Path
    steps: tuple[str, ...]
    budget: float
    dry_run: bool
    threads: tuple[int, ...]
    models: tuple[str, ...]
    method: str
    placement: str
    mps: bool
    batch_factor: float
    seed: int


def _options(argv: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser("python -m benchmarks.gpu", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the JSON files")
    parser.add_argument("--steps", default=",".join(_SHARES), help="any of %(default)s")
    parser.add_argument("--budget", type=float, default=540, help="seconds for all steps")
    parser.add_argument("--dry-run", action="store_true", help="on the processor, with Gloo")
    parser.add_argument("--threads", default=",".join(map(str, _THREADS)), help="R")
    parser.add_argument("--models", default=",".join(_MODELS), help="any of %(default)s")
    parser.add_argument(
        "--method", choices=_METHODS, default="tuner", help="how channels reach NCCL"
    )
    parser.add_argument(
        "--placement", choices=_PLACEMENTS, default="auto", help="how two ranks share a GPU in NCCL"
    )
    parser.add_argument("--no-mps", action="store_true", help="let ranks take turns on the GPU")
    parser.add_argument("--batch-factor", type=float, default=1.0, help="times the usual samples")
    parser.add_argument("--seed", type=int, default=0, help="of orders")
    parsed = parser.parse_args(argv)
    steps = tuple(parsed.steps.split(","))
    models = tuple(parsed.models.split(","))
    for name, values, allowed in (("steps", steps, tuple(_SHARES)), ("models", models, _MODELS)):
        if unknown := [value for value in values if value not in allowed]:
            parser.error(f"--{name} must be any of {', '.join(allowed)}, got {unknown[0]!r}")
    try:
        threads = tuple(sorted({int(value) for value in parsed.threads.split(",")}))
    except ValueError:
        parser.error(f"--threads must be whole numbers, got {parsed.threads!r}")
    if any(count < 128 or count % 128 for count in threads):
        parser.error(f"--threads must be multiples of 128, got {parsed.threads!r}")
    for name in ("budget", "batch_factor"):
        if not getattr(parsed, name) > 0:
            flag = name.replace("_", "-")
            parser.error(f"--{flag} must be above 0, got {getattr(parsed, name):g}")
    return Options(
        out=parsed.out.resolve(),
        steps=steps,
        budget=parsed.budget,
        dry_run=parsed.dry_run,
        threads=threads,
        models=models,
        method=parsed.method,
        placement=parsed.placement,
        mps=not parsed.no_mps,
        batch_factor=parsed.batch_factor,
        seed=parsed.seed,
    )


def _missing(*, dry_run: bool) -> list[str]:
    """Returns what this machine lacks, in one line; empty if it lacks nothing."""
    import importlib.util

    absent = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if absent:
        return [f"{', '.join(absent)} cannot be imported by {sys.executable}"]
    if dry_run:
        return []
    import torch

    if not torch.cuda.is_available():
        return ["PyTorch sees no GPU; --dry-run does without one"]
    if not torch.distributed.is_nccl_available():
        return ["this PyTorch has no NCCL; --dry-run does without it"]
    return []


if __name__ == "__main__":
    sys.exit(main())
