"""Measures how long planning takes, how it grows, and how much memory it needs.

The planners run in one thread; CPU seconds are what they take on a machine with nothing else to do.

    python -m benchmarks.planning [--repeats 3] [--exact] [--markdown FILE] [--json FILE]

The networks are those of `benchmarks.networks`. Where a size grows alone, profiles are drawn from a
fixed seed instead: log-normal tensor sizes and uniform computation times. Computation is scaled so
that sending everything overlapped with 1024 threads takes a given multiple of it. Where there are
updates after the last gradient, they take `UPDATES` of computation's time, each by its tensor's
bytes; plans are then made for the step, and changed one thing at a time until it gets no shorter.
"""

import dataclasses
import json
import os
import platform
import resource
import statistics
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags, logging

import tf_libra
from benchmarks import networks
from benchmarks.predicted import predicted_seconds
from tf_libra import strategies
from tf_libra.simulation import simulate

COST = tf_libra.ContentionModel(
    num_workers=8,
    hop_latency=1e-5,
    compute=(1.0, 1.3e-4),
    overlapped=(5e9, 4.5e9, 0.02),
    exclusive=(6e9, 5e9, 0.03),
)
THREADS = (128, 256, 512, 1024, 2048, 4096)
LIMITS = {"resnet152": 1.0, "bert_base": 0.3, "densenet201": 2.0}  # seconds
RATIOS = (0.3, 1.0, 3.0)
UPDATES = 0.3
# Of random profiles with updates, and their ratios: slow computation leaves `libra-m` hundreds of
# groups, of which each is changed.
MANY_TENSORS = 1868
MANY_RATIOS = (0.1, 1.0)
STRATEGIES = (strategies.Libra.name, strategies.LibraM.name)  # those that plan for the step
GROWTH = {
    "L": (117, 234, 467, 936),
    "K": (5, 10, 20, 40),
    "Z": (50, 100, 200, 400),
    "|R|": (2, 4, 8, 16),
}


@dataclasses.dataclass(frozen=True)
class Case:
    """One planning problem; `ratio` is communication to computation, `updates` updates to it.

    Without a network, the profile is a random one of so many tensors. `exact` and `max_groups` are
    LIBRA's alone.
    """

    network: str | None = None
    tensors: int = 467
    max_groups: int = 10
    chunks: int = 150
    threads: int = 6
    ratio: float = 1.0
    exact: bool = False
    updates: float = 0.0
    strategy: str = "libra"


@dataclasses.dataclass(frozen=True)
class Result:
    """Cost of planning; the memory of the optimum, which may take minutes, is unknown."""

    case: Case
    seconds: float
    cpu_seconds: float
    peak_mebibytes: float | None
    predicted_seconds: float
    step_seconds: float
    groups: int


def profile_of(case: Case) -> tf_libra.BackwardProfile:
    if case.network is None:
        rng = np.random.default_rng(case.tensors)
        sizes = rng.lognormal(10, 2, case.tensors)
        seconds = rng.random(case.tensors) * 1e-3
    else:
        profile = networks.load(case.network).profile_at(1e13, 32)
        sizes = profile.num_bytes.astype(np.float64)
        seconds = profile.compute_seconds
    num_bytes = np.ceil(sizes).astype(np.int64)
    sent = float(COST.overlapped_seconds(num_bytes.sum(), 1024))
    seconds = seconds * sent / (case.ratio * seconds.sum())
    updates = num_bytes * (case.updates * seconds.sum() / num_bytes.sum())
    return tf_libra.BackwardProfile.from_arrays(num_bytes, seconds, update_seconds=updates)


def strategy_of(case: Case) -> strategies.Libra | strategies.LibraM:
    threads = allowed(case.threads)
    if case.strategy == strategies.LibraM.name:
        return strategies.LibraM(threads=threads, chunks=case.chunks)
    return strategies.Libra(
        threads=threads, max_groups=case.max_groups, chunks=case.chunks, exact=case.exact
    )


def allowed(count: int) -> tuple[int, ...]:
    if count == len(THREADS):
        return THREADS
    return tuple(np.unique(np.geomspace(128, 4096, count).astype(int)).tolist())


def measure(case: Case, repeats: int) -> Result:
    profile = profile_of(case)
    strategy = strategy_of(case)
    times, cpu_times = [], []
    for _ in range(repeats):
        started, cpu_started = time.perf_counter(), time.process_time()
        plan = tf_libra.make_plan(profile, COST, strategy)
        times.append(time.perf_counter() - started)
        cpu_times.append(time.process_time() - cpu_started)
    logging.info("%s: %.1f CPU seconds", case, statistics.median(cpu_times))
    return Result(
        case=case,
        seconds=statistics.median(times),
        cpu_seconds=statistics.median(cpu_times),
        peak_mebibytes=None if case.exact else peak_mebibytes(profile, strategy),
        predicted_seconds=predicted_seconds(plan),
        step_seconds=simulate(profile, plan, COST).step_seconds,
        groups=len(plan.groups),
    )


def peak_mebibytes(
    profile: tf_libra.BackwardProfile, strategy: strategies.Libra | strategies.LibraM
) -> float:
    tracemalloc.start()
    tf_libra.make_plan(profile, COST, strategy)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 2**20


@dataclasses.dataclass(frozen=True)
class Distance:
    """Excess of the chunked program's plans over the optimum: ratios - 1."""

    obeys_assumptions: bool
    problems: int
    median: float
    worst: float


def distances(problems: int) -> list[Distance]:
    """Compares on random problems of 30 tensors, K = 5, Z = 50, by whether Lemmas 3 and 4 hold."""
    rng = np.random.default_rng(0)
    ratios: dict[bool, list[float]] = {True: [], False: []}
    while min(map(len, ratios.values())) < problems:
        rate, slow, more, last = rng.uniform((0.2, 0.3, 0.0, 0.0), (1.2, 3.0, 0.9, 0.9))
        alone = (rng.uniform(1e9, 4e9), 0.8e9, 0.5)
        cost = tf_libra.ContentionModel(
            num_workers=8,
            hop_latency=10 ** rng.uniform(-6, -4),
            compute=(rate, more * rate / 8),
            overlapped=(alone[0] / slow, last * alone[0] / slow, 0.5),
            exclusive=alone,
        )
        profile = tf_libra.BackwardProfile.from_arrays(
            rng.lognormal(12, 2, 30).astype(np.int64) + 1, rng.random(30) * 1e-3
        )
        chunked = strategies.Libra(threads=(1, 2, 4, 8), max_groups=5, chunks=50)
        best = tf_libra.make_plan(profile, cost, dataclasses.replace(chunked, exact=True))
        found = tf_libra.make_plan(profile, cost, chunked)
        # The exact planner notes where a lemma does not hold.
        ratios[not best.notes].append(predicted_seconds(found) / predicted_seconds(best) - 1)
    return [
        Distance(obeys, len(values), statistics.median(values), max(values))
        for obeys, values in ratios.items()
    ]


def run(repeats: int, exact: bool) -> dict[str, list[Result]]:
    """Measures every table: the models, with updates, growth in each size alone, the optimum."""
    fields = {"L": "tensors", "K": "max_groups", "Z": "chunks", "|R|": "threads"}
    cases = [
        Case(network=name, tensors=len(networks.load(name).tensors), ratio=ratio)
        for name in LIMITS
        for ratio in RATIOS
    ]
    cases += [Case(ratio=ratio) for ratio in RATIOS]
    tables = {"models": [measure(case, repeats) for case in cases]}
    with_updates = [case for case in cases if case.network or case.ratio == 1.0]
    with_updates += [Case(tensors=MANY_TENSORS, ratio=ratio) for ratio in MANY_RATIOS]
    tables["updates"] = [
        measure(dataclasses.replace(case, updates=UPDATES, strategy=name), repeats)
        for case in with_updates
        for name in STRATEGIES
    ]
    for letter, values in GROWTH.items():
        grown: list[dict[str, Any]] = [{fields[letter]: value} for value in values]
        tables[letter] = [measure(Case(**sizes), repeats) for sizes in grown]
    if exact:
        tables["exact"] = [measure(dataclasses.replace(c, exact=True), 1) for c in cases]
    return tables


def markdown(tables: dict[str, list[Result]]) -> str:
    head = ["network", "tensors", "communication / computation", "seconds", "CPU seconds"]
    head += ["limit", "peak MiB", "groups", "backward, ms"]
    exact = tables.get("exact")
    if exact:
        head += ["exact: CPU seconds", "backward, ms", "chunked above it"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for index, result in enumerate(tables["models"]):
        case = result.case
        cells = [
            case.network or "random",
            str(case.tensors),
            str(case.ratio),
            f"{result.seconds:.3f}",
            f"{result.cpu_seconds:.3f}",
            str(LIMITS.get(case.network or "", "")),
            f"{result.peak_mebibytes:.0f}",
            str(result.groups),
            f"{1e3 * result.predicted_seconds:.3f}",
        ]
        if exact:
            best = exact[index]
            above = result.predicted_seconds / best.predicted_seconds - 1
            cells += [
                f"{best.cpu_seconds:.3f}",
                f"{1e3 * best.predicted_seconds:.3f}",
                f"{100 * above:.3f} %",
            ]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", *updates_table(tables["updates"])]
    lines += ["", "| grows | " + " | ".join(["value", "CPU seconds"] * 4) + " |", "|---" * 9 + "|"]
    for letter, values in GROWTH.items():
        cells = [
            f"{value} | {result.cpu_seconds:.3f}"
            for value, result in zip(values, tables[letter], strict=True)
        ]
        lines.append(f"| {letter.replace('|', chr(92) + '|')} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def updates_table(results: list[Result]) -> list[str]:
    """A row per profile with updates, with columns for each strategy."""
    head = ["network", "tensors", "communication / computation"]
    for name in STRATEGIES:
        head += [f"`{name}`: CPU seconds", "groups", "step, ms"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for index in range(0, len(results), len(STRATEGIES)):
        of_row = results[index : index + len(STRATEGIES)]
        case = of_row[0].case
        cells = [case.network or "random", str(case.tensors), str(case.ratio)]
        for result in of_row:
            cells += [
                f"{result.cpu_seconds:.3f}",
                str(result.groups),
                f"{1e3 * result.step_seconds:.3f}",
            ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def distance_markdown(rows: list[Distance]) -> str:
    lines = [
        "| Assumptions 2 and 3 | problems | chunked above optimum, median | worst |",
        "|---|---|---|---|",
    ]
    for row in rows:
        word = "hold" if row.obeys_assumptions else "do not hold"
        lines.append(
            f"| {word} | {row.problems} | {100 * row.median:.3f} % | {100 * row.worst:.3f} % |"
        )
    return "\n".join(lines) + "\n"


def main(argv: list[str]) -> None:
    logging.set_verbosity(logging.INFO)
    if len(argv) > 1:
        raise app.UsageError(f"only flags are accepted, got {argv[1:]}")
    tables = run(_REPEATS.value, _EXACT.value)
    compared = distances(_PROBLEMS.value)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    machine = f"{platform.machine()}, {os.cpu_count()} cores, NumPy {np.__version__}"
    text = markdown(tables)
    times = f"One thread, median of {_REPEATS.value}, exact once"
    text += f"\n{times}; {machine}; peak RSS {peak:.0f} MiB.\n"
    text += f"\n{distance_markdown(compared)}"
    print(text)
    if _MARKDOWN.value:
        Path(_MARKDOWN.value).write_text(text)
    if _JSON.value:
        value = {
            "machine": machine,
            "peak_rss_mebibytes": peak,
            "repeats": _REPEATS.value,
            "distances": list(map(dataclasses.asdict, compared)),
            "tables": {
                name: [dataclasses.asdict(r) for r in rows] for name, rows in tables.items()
            },
        }
        Path(_JSON.value).write_text(json.dumps(value, indent=1) + "\n")


if __name__ == "__main__":
    _REPEATS = flags.DEFINE_integer("repeats", 3, "plans per case; the median counts", 1)
    _PROBLEMS = flags.DEFINE_integer(
        "problems", 200, "to compare with the optimum, of each kind", 1
    )
    _EXACT = flags.DEFINE_bool("exact", False, "also the optimum of every network")
    _MARKDOWN = flags.DEFINE_string("markdown", None, "write the tables to this file")
    _JSON = flags.DEFINE_string("json", None, "write all results to this file")
    app.run(main)
