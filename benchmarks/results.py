"""From the seconds of each round to medians, paired ratios and tables."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

BASELINES = ("horovod", "mwms", "one-worker", "none")


def better_horovod(seconds: Mapping[str, Sequence[float]]) -> str | None:
    """The variant of Horovod with the smaller median; None where it was not measured."""
    variants = [name for name in seconds if name.startswith("horovod:")]
    return min(variants, key=lambda name: float(np.median(seconds[name])), default=None)


def summaries(seconds: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float]]:
    """Median, 10th and 90th percentile of the seconds of every strategy."""
    return {
        name: {f"{key}_seconds": value for key, value in spread(values).items()}
        for name, values in seconds.items()
    }


def ratios(seconds: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float]]:
    """The spread of the ratio to each baseline, paired round by round, as "libra/horovod"."""
    return {
        f"{name}/{baseline}": spread(np.divide(seconds[name], seconds[baseline]))
        for baseline in BASELINES
        if baseline in seconds
        for name in seconds
        if name not in (baseline, "none")
    }


def table(document: Mapping[str, Any], *, markdown: bool) -> str:
    """Strategies by rows: milliseconds per step, and ratios, each as median (p10 to p90).

    Where another strategy made the plan, because the fitted model was not to be trusted, the row
    says which.
    """
    baselines = [name for name in BASELINES if name in document["strategies"]]
    rows = [("strategy", "step, ms", *(f"to {name}" for name in baselines))]
    for name, values in document["strategies"].items():
        milliseconds = [values[f"{key}_seconds"] * 1e3 for key in ("median", "p10", "p90")]
        cells = [_cell(milliseconds, ".1f")]
        for baseline in baselines:
            ratio = document["ratios"].get(f"{name}/{baseline}")
            cells.append("" if ratio is None else _cell(ratio.values(), ".3f"))
        requested = name.partition(":")[0]
        # A plan of one rank names no strategy: nothing else makes such plans.
        planner = document["plan"].get(name, {}).get("strategy", requested)
        rows.append((name if planner == requested else f"{name} (plan by {planner})", *cells))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    if markdown:
        rows.insert(1, tuple("-" * width for width in widths))
        lines = [f"| {' | '.join(map(str.ljust, row, widths))} |" for row in rows]
    return "\n".join(lines)


def notes(document: Mapping[str, Any]) -> str:
    """Returns notes for the reader of the table, a line each."""
    machine, settings = document["machine"], document["settings"]
    lines = [
        f"{settings['model']}: {settings['parameters'] / 1e6:.1f} M parameters,"
        f" {settings['np']} workers, {document['rounds']} rounds;"
        f" median (10th to 90th percentile) of the slowest rank",
        f"network: {settings['network']}; TCP congestion control {settings['congestion_control']}",
        f"machine: {machine['cpu']}, {machine['cores']} cores,"
        f" {machine['memory_bytes'] / 2**30:.1f} GiB, Linux {machine['kernel']},"
        f" load {machine['load_average']:.1f} at the start",
        "versions: " + ", ".join(f"{name} {value}" for name, value in document["versions"].items()),
        _threads(settings),
    ]
    if "one-worker" in document["strategies"]:
        lines.append(
            f"one-worker: rank 0 alone trains the batches of all {settings['np']} workers as one,"
            " with the threads of one worker; the others wait"
        )
    horovod = settings["horovod"]
    if "variant" in horovod:
        medians = " and ".join(
            f"{name} ({values['median_seconds'] * 1e3:.1f} ms)"
            for name, values in horovod["variants"].items()
        )
        environment = " ".join(f"{name}={value}" for name, value in horovod["environment"].items())
        lines.append(
            f"horovod: the better of {medians} is {horovod['variant']}; cycle time"
            f" {horovod['cycle_seconds'] * 1e3:g} ms, fusion threshold"
            f" {horovod['fusion_threshold_bytes'] / 2**20:g} MiB, {environment}"
        )
    for name, plan in document["plan"].items():
        if "groups" not in plan:  # of a pipeline or burst
            continue
        threads = ", ".join(str(group["num_threads"]) for group in plan["groups"])
        lines.append(
            f"{name}: plan by {plan['strategy']}, {len(plan['groups'])} group(s), threads {threads}"
        )
        lines += [f"{name}: {note}" for note in plan["notes"]]
    return "\n".join(f"- {line}" for line in lines)


def _threads(settings: Mapping[str, Any]) -> str:
    cores = settings["cores_per_worker"]
    if not settings["pinned"]:
        return f"threads per worker: as TensorFlow makes them, on {cores} core(s), not pinned"
    return (
        f"threads per worker: {cores} core(s), {settings['intra_op_threads']} intra-op,"
        f" {settings['inter_op_threads']} inter-op"
    )


def spread(values: Any) -> dict[str, float]:
    """Median, 10th and 90th percentile."""
    p10, median, p90 = np.percentile(values, (10, 50, 90)).tolist()
    return {"median": median, "p10": p10, "p90": p90}


def ratio_text(ratio: Mapping[str, float]) -> str:
    """Returns the spread of a ratio as text, such as "0.700 (0.637 to 0.761)"."""
    return _cell((ratio["median"], ratio["p10"], ratio["p90"]), ".3f")


def medians(document: Mapping[str, Any]) -> dict[str, float]:
    """Returns the median seconds of every strategy in a document of `benchmarks.step_time`."""
    return {name: strategy["median_seconds"] for name, strategy in document["strategies"].items()}


def machine_text(document: Mapping[str, Any]) -> str:
    """Returns one line on the machine and the versions that a document was measured with."""
    machine = document["machine"]
    versions = ", ".join(f"{name} {value}" for name, value in document["versions"].items())
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_bytes'] / 2**30:.1f} GiB,"
        f" Linux {machine['kernel']}; {versions}."
    )


def _cell(values: Any, precision: str) -> str:
    median, p10, p90 = (format(value, precision) for value in values)
    return f"{median} ({p10} to {p90})"
