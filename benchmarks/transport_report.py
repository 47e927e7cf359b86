"""Tables of `benchmarks/transport.py`, from the lines that its programs print in each round."""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.markdown import table

# Pairs of transports whose paired ratios the first table reports.
RATIOS = (
    ("lanes-memory", "lanes-unix"),
    ("lanes-memory", "gloo"),
    ("lanes-unix", "gloo"),
    ("lanes-tcp", "gloo"),
)
# Transports that the table of messages compares with lanes in shared memory.
MESSAGES = ("collectives", "sends", "lanes-copy")
Rounds = Mapping[str, Sequence[str]]


def overlap_cases(rounds: Sequence[str]) -> list[dict[str, Any]]:
    """Parses the output of `transport.cc`: per case, a row of figures for each round."""
    found: dict[tuple[str, int, int], list[list[float]]] = defaultdict(list)
    for line in "\n".join(rounds).split("\n"):
        if line:
            name, size, threads, *figures = line.split()
            found[name, int(size), int(threads)].append([float(figure) for figure in figures])
    return [
        {"transport": name, "bytes": size, "threads": threads, "rounds": figures}
        for (name, size, threads), figures in found.items()
    ]


def latency_cases(rounds: Sequence[str]) -> list[dict[str, Any]]:
    """Parses the output of `latencies.cc`: latencies of all rounds, and CPU time for each round."""
    cpu: dict[tuple[int, str, str, int], list[float]] = defaultdict(list)
    seconds: dict[tuple[int, str, str, int], list[float]] = defaultdict(list)
    for line in "\n".join(rounds).split("\n"):
        if line:
            ranks, name, kind, size, cpu_seconds, *latencies = line.split()
            key = int(ranks), name, kind, int(size)
            cpu[key].append(float(cpu_seconds))
            seconds[key] += map(float, latencies)
    return [
        {
            "ranks": key[0],
            "transport": key[1],
            "type": key[2],
            "bytes": key[3],
            "p50_seconds": float(np.percentile(seconds[key], 50)),
            "p99_seconds": float(np.percentile(seconds[key], 99)),
            "samples": len(seconds[key]),
            "cpu_seconds": statistics.median(cpu[key]),
        }
        for key in cpu
    ]


def sum_cases(rounds: Sequence[str]) -> list[dict[str, Any]]:
    """Parses the output of `sums.cc`: the best rate of all rounds, in bytes per second."""
    best: dict[tuple[int, str], float] = defaultdict(float)
    for line in "\n".join(rounds).split("\n"):
        if line:
            ranks, kind, rate = line.split()
            best[int(ranks), kind] = max(best[int(ranks), kind], float(rate))
    return [{"ranks": ranks, "type": kind, "rate": rate} for (ranks, kind), rate in best.items()]


def blocks(document: Mapping[str, Any]) -> dict[str, str]:
    """Returns the tables by the names of their marks in `docs/benchmarks.md`."""
    return {
        "transport_overlap": overlap_table(document["overlap"]),
        "transport_latencies": latency_table(document["latencies"]),
        "transport_messages": message_table(document["latencies"]),
        "transport_sums": sum_table(document["sums"]),
    }


def overlap_table(cases: Sequence[Mapping[str, Any]]) -> str:
    """Medians over rounds, and medians of ratios paired by round."""
    by_size: dict[tuple[int, int], dict[str, Any]] = defaultdict(dict)
    for case in cases:
        by_size[case["bytes"], case["threads"]][case["transport"]] = case["rounds"]
    rows = []
    for (size, threads), by_transport in by_size.items():
        for name, rounds in by_transport.items():
            medians = np.median(rounds, axis=0)
            cells = [f"{value * 1e3:.2f}" for value in medians[:3]]
            rows.append((size, threads, name, *cells, f"x{medians[3]:.2f}"))
        for first, second in RATIOS:
            if second in by_transport:
                ratios = np.divide(by_transport[first], by_transport[second])
                cells = [f"{ratio:.2f}" for ratio in np.median(ratios, axis=0)]
                rows.append((size, threads, f"{first}/{second}", *cells))
    head = ("bytes", "threads", "", "alone ms", "CPU ms", "overlapped ms", "slowdown")
    return table(head, rows)


def latency_table(cases: Sequence[Mapping[str, Any]]) -> str:
    """One row per transport, element type and size; p50, p99 and CPU time by number of ranks."""
    ranks = sorted({case["ranks"] for case in cases})
    cells: dict[tuple[str, str, int], dict[int, str]] = defaultdict(dict)
    for case in cases:
        values = (case[f"{key}_seconds"] * 1e6 for key in ("p50", "p99", "cpu"))
        text = " / ".join(f"{value:.0f}" for value in values)
        cells[case["transport"], case["type"], case["bytes"]][case["ranks"]] = text
    head = (
        "transport",
        "type",
        "bytes",
        *(f"{number} ranks: p50 / p99 / CPU us" for number in ranks),
    )
    rows = [(*key, *(row.get(number, "") for number in ranks)) for key, row in cells.items()]
    return table(head, rows)


def message_table(cases: Sequence[Mapping[str, Any]]) -> str:
    """Collectives and sends relative to a lane in shared memory: p50 and CPU time."""
    found = {
        (case["ranks"], case["transport"], case["type"], case["bytes"]): case for case in cases
    }
    rows: dict[tuple[str, int], dict[int, str]] = defaultdict(dict)
    for (ranks, name, kind, size), case in found.items():
        if name in MESSAGES:
            lane = found[ranks, "lanes-memory", kind, size]
            ratios = (case[key] / lane[key] for key in ("p50_seconds", "cpu_seconds"))
            rows[name, size][ranks] = " / ".join(f"{ratio:.2f}" for ratio in ratios)
    numbers = sorted({case["ranks"] for case in cases})
    head = ("", "bytes", *(f"{number} ranks: p50 / CPU" for number in numbers))
    cells = [(*key, *(row.get(number, "") for number in numbers)) for key, row in rows.items()]
    return table(head, cells)


def sum_table(cases: Sequence[Mapping[str, Any]]) -> str:
    """GB/s of output by element type and number of ranks."""
    ranks = sorted({case["ranks"] for case in cases})
    rates = {(case["type"], case["ranks"]): f"{case['rate'] / 1e9:.1f}" for case in cases}
    kinds = dict.fromkeys(case["type"] for case in cases)
    rows = [(kind, *(rates[kind, number] for number in ranks)) for kind in kinds]
    return table(("type", *(f"{number} ranks" for number in ranks)), rows)
