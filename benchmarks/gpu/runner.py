"""Makes the jobs of each step, with the plugin built and the GPU shared between ranks."""

import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from benchmarks.gpu import documents, launch, mps, tuner
from benchmarks.gpu.communication import THREADS_PER_CHANNEL

_PROBE_SECONDS = 60.0
# Two ranks run plans; two more, in processes of their own, leave all to NCCL: what makes a channel
# 128 threads is fixed per process.
_TWO = {"planned": (0, 1)}
_FOUR = {"planned": (0, 1), "own": (2, 3)}


class _Options(Protocol):
    @property
    def out(self) -> Path: ...
    @property
    def dry_run(self) -> bool: ...
    @property
    def threads(self) -> tuple[int, ...]: ...
    @property
    def models(self) -> tuple[str, ...]: ...
    @property
    def method(self) -> str: ...
    @property
    def placement(self) -> str: ...
    @property
    def mps(self) -> bool: ...
    @property
    def batch_factor(self) -> float: ...
    @property
    def seed(self) -> int: ...


@contextlib.contextmanager
def prepared(options: _Options, folder: Path, report: dict[str, Any]) -> Iterator["Bench"]:
    """Builds the plugin and starts the multi-process service, each where it can be had.

    Yields:
      What runs the steps; `report["notes"]` says what could not be had.
    """
    method, library = options.method, ""
    try:
        library = str(tuner.build(folder))
    except RuntimeError as error:
        report["notes"].append(f"the plugin could not be built, so communicators are used: {error}")
        method = "communicators"
    with contextlib.ExitStack() as stack:
        client: dict[str, str] = {}
        if not options.dry_run and options.mps:
            client = stack.enter_context(mps.service(folder / "mps", _PROBE_SECONDS))
            if not client:
                report["notes"].append("no multi-process service: ranks take turns on the GPU")
        placement = _placement(options)
        yield Bench(options, folder, method, placement, library, client, report["notes"])


def _placement(options: _Options) -> str:
    """Returns the requested placement, or that of PyTorch's NCCL."""
    if options.placement != "auto":
        return options.placement
    if options.dry_run:
        return launch.HOST_IDS
    import torch

    return launch.choose_placement(torch.cuda.nccl.version())


class Bench:
    """Runs steps one after the other."""

    def __init__(
        self,
        options: _Options,
        folder: Path,
        method: str,
        placement: str,
        library: str,
        client: dict[str, str],
        notes: list[str],
    ) -> None:
        self._options = options
        self._folder = folder
        self._method = method
        self._placement = placement
        self._library = library
        self._client = client
        self._notes = notes

    def step(self, name: str, seconds: float) -> list[str]:
        """Runs a step within so many seconds; returns what went wrong, a text for each rank."""
        if name == "training":
            return self._training(seconds)
        until = time.time() + seconds
        models = self._options.models
        teams: Mapping[str, tuple[int, ...]] = {"planned": (0,)} if name == "profiles" else _TWO
        method = "communicators" if name == "profiles" else self._method
        if self._may_change_placement(name):
            problems = self._run(name, teams, method, models, seconds / 2, name)
            if problems:
                self._placement = launch.HOST_IDS
                last = problems[0].strip().splitlines()[-1]
                self._notes.append(f"placement multi-rank failed, so it is host ids: {last}")
                problems = self._run(name, teams, method, models, until - time.time(), name)
        else:
            problems = self._run(name, teams, method, models, seconds, name)
        if name == "channels" and self._method == "tuner" and not problems:
            problems = self._check_channels()
        return problems

    def _may_change_placement(self, step: str) -> bool:
        """True if the step is the first with two ranks, which NCCL may have rejected."""
        chosen = self._options.placement == "auto" and self._placement == launch.MULTI_RANK
        return step == "channels" and chosen

    def _check_channels(self) -> list[str]:
        """Returns the problems; switches the method of later steps if NCCL ignored the plugin."""
        document = documents.read(self._options.out / "channels.json")
        if document["results"]["proven"]:
            return []
        counters = document["results"]["tuner_counters"] or {}
        if not counters.get("applied"):
            self._method = "communicators"
            return ["channels: NCCL never called the plugin; communicators are used from here on"]
        return []

    def _training(self, seconds: float) -> list[str]:
        """A job per network, so that one which fails costs the others nothing."""
        began, models = time.time(), list(self._options.models)
        problems: list[str] = []
        parts = []
        while models:
            model = models.pop(0)
            share = (began + seconds - time.time()) / (1 + len(models))
            part = f"training-{model}"
            problems += self._run("training", _FOUR, self._method, (model,), share, part)
            path = self._path(part)
            if path.exists():
                parts.append(documents.read(path))
                self._join(parts)
                path.unlink()
        return problems

    def _join(self, parts: list[Any]) -> None:
        """One file of all networks so far."""
        results: dict[str, dict[str, Any]] = {"models": {}}
        for part in parts:
            results["models"] |= part["results"].get("models", {})
        joined = {
            **parts[0],
            "complete": all(part["complete"] for part in parts)
            and len(parts) == len(self._options.models),
            "settings": {**parts[0]["settings"], "models": list(self._options.models)},
            "notes": [note for part in parts for note in part["notes"]],
            "results": results,
        }
        documents.write(self._options.out / "training.json", joined)

    def _path(self, name: str) -> Path:
        return self._options.out / f"{name}.json"

    def _run(
        self,
        step: str,
        teams: Mapping[str, tuple[int, ...]],
        method: str,
        models: tuple[str, ...],
        seconds: float,
        output: str,
    ) -> list[str]:
        options = self._options
        world_size = sum(map(len, teams.values()))
        store = tempfile.mkdtemp(dir=self._folder)
        first = launch.Job(
            step=step,
            rank=0,
            world_size=world_size,
            teams=teams,
            store=f"{store}/store",
            output=str(self._path(output)),
            folder=store,
            deadline=time.time() + seconds,
            dry_run=options.dry_run,
            sharing="mps" if self._client else "time slices",
            placement=self._placement,
            method=method,
            tuner=self._library,
            threads=options.threads,
            models=models,
            batch_factor=options.batch_factor,
            seed=options.seed,
        )
        jobs = [dataclasses.replace(first, rank=rank) for rank in range(world_size)]
        environments = []
        for job in jobs:
            environment = launch.nccl_environment(job, THREADS_PER_CHANNEL)
            environment |= {"GLOO_SOCKET_IFNAME": "lo", **self._client}
            if self._client and world_size > 1:
                environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = "50"
            environments.append(environment)
        ended_well, problems = launch.run(jobs, environments)
        assert ended_well == (not problems)
        return list(problems)


def summary(out: Path, report: dict[str, Any]) -> str:
    """A few lines that say what was found."""
    lines = [f"gpu: {note}" for note in report["notes"]]
    for step in documents.STEPS:
        path = out / f"{step}.json"
        if step not in report["steps"] or not path.exists():
            continue
        document = documents.read(path)
        results = document["results"]
        state = "complete" if document["complete"] else "incomplete"
        lines.append(f"{step}: {state}{', dry run' if document['dry_run'] else ''}")
        if step == "channels":
            verdict = "as requested" if results["proven"] else results["reason"]
            lines.append(f"  channels: {verdict}, says {results['written_by']}")
        elif step == "curves" and results.get("cost_model"):
            for row in results["alone"]["curve"]:
                lines.append(
                    f"  {row['num_bytes']:>9} bytes, {row['num_threads']:>4} threads, alone: "
                    f"{row['seconds'] * 1e3:.3f} ms, bus {row['bus_bandwidth'] / 1e9:.3f} GB/s"
                )
        elif step == "profiles":
            for name, model in results["models"].items():
                backward = model["backward_seconds"]["median"] * 1e3
                lines.append(f"  {name}: backward {backward:.2f} ms, batch {model['batch_size']}")
        elif step == "training":
            for name, model in results["models"].items():
                for strategy, row in model.get("strategies", {}).items():
                    lines.append(f"  {name}, {strategy}: {_training_row(row)}")
    return "\n".join(lines)


def _training_row(row: dict[str, Any]) -> str:
    text = f"backward {row['backward_seconds']['median'] * 1e3:.2f} ms"
    if row["predicted_seconds"] is not None:
        text += f" (predicted {row['predicted_seconds'] * 1e3:.2f})"
    for baseline, ratio in row["ratios"].items():
        text += f", to {baseline} {ratio['median']:.3f}"
    return text
