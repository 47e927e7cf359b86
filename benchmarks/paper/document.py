"""The evaluations as Markdown: tables for the marks of a document."""

from collections import Counter
from collections.abc import Collection, Sequence

from benchmarks.markdown import table
from benchmarks.paper.evaluation import (
    ASC_PAPER,
    ASC_PAPER_SPEEDUPS,
    AscRow,
    Claim,
    Row,
    per_node,
)
from benchmarks.paper.parameters import ASC_GAMMA, Parameters, asc_gamma
from benchmarks.paper.sensitivity import Sweep


def skeleton(parameters: Parameters, blocks: dict[str, str]) -> str:
    """A document with all blocks, for a set of parameters that has none yet."""
    parts = [f"# The papers' evaluation: {parameters.name}\n"]
    for name in blocks:
        heading = name.replace("_", " ").capitalize()
        parts.append(f"\n## {heading}\n\n<!-- begin {name} -->\n<!-- end {name} -->\n")
    return "".join(parts)


def sources(parameters: Parameters) -> str:
    """Returns the source of every parameter, and the resulting cost models and networks."""
    lines = [f"- {source}." for source in parameters.sources]
    rows = []
    for workload in parameters.workloads:
        profile, cost = workload.profile, workload.cost
        backward = float(profile.compute_after[0])
        r = parameters.library_threads
        sent = float(cost.exclusive_seconds(int(profile.bytes_before[-1]), r))
        rows.append(
            (
                workload.name,
                len(profile.tensors),
                f"{profile.bytes_before[-1] / 1e6:.0f}",
                workload.batch,
                f"{1e3 * workload.forward_seconds:.1f}",
                f"{1e3 * backward:.1f}",
                f"{1e3 * sent:.1f}",
                f"{sent / backward:.2f}",
                f"{float(cost.compute_rate(r)):.3f}",
                f"{1e3 * cost.startup_seconds:.3f}",
            )
        )
    head = (
        "network", "tensors", "MB", "batch", "forward, ms", "backward, ms", "sent in, ms",
        "sent / backward", "rate with r", "a, ms",
    )  # fmt: skip
    text = (
        f"\nr = {parameters.library_threads}, the library's own choice; 'sent in' is q of all "
        "gradients together; 'rate with r' is alpha1 - alpha2·r.\n"
    )
    return "\n".join(lines) + "\n\n" + table(head, rows) + text


def testbed(rows: Sequence[Row]) -> str:
    """LIBRA's Figs. 6 to 8 in numbers."""
    head = (
        "network", "strategy", "samples/s", "step, ms", "backward, ms", "computation, ms",
        "residual, ms", "all-reduces, ms", "groups, of threads",
    )  # fmt: skip
    lines = [
        (
            row.network,
            row.strategy,
            f"{row.throughput:.0f}",
            *(
                f"{1e3 * seconds:.1f}"
                for seconds in (
                    row.step_seconds,
                    row.backward_seconds,
                    row.computation_seconds,
                    row.residual_seconds,
                    row.communication_seconds,
                )
            ),
            _counts(row.threads),
        )
        for row in rows
    ]
    return table(head, lines)


def claims(found: Sequence[Claim], fitted: Collection[str] = ()) -> str:
    """Returns a table of the paper's figures and ours; texts in `fitted` are marked as fitted."""
    lines = []
    for claim in found:
        differences = [
            f"{ours - paper:+.1f}" for ours, paper in zip(claim.ours, claim.paper, strict=True)
        ]
        lines.append(
            (
                f"{claim.text} (fitted)" if claim.text in fitted else claim.text,
                claim.where,
                _range(claim.paper),
                _range(claim.ours),
                " / ".join(dict.fromkeys(differences)),
            )
        )
    return table(("percent", "paper", "paper's", "computed", "difference, points"), lines)


def scale(parameters: Parameters, rows: Sequence[Row]) -> str:
    """LIBRA's Fig. 9 in numbers."""
    clusters = sorted({row.workers for row in rows})
    cells = {(row.network, row.strategy, row.workers): row for row in rows}
    pairs = dict.fromkeys((row.network, row.strategy) for row in rows)
    lines = [
        (*pair, *(f"{per_node(parameters, cells[*pair, n]):.3f}" for n in clusters))
        for pair in pairs
    ]
    return table(("network", "strategy", *map(str, clusters)), lines)


def sensitivity(sweeps: Sequence[Sweep]) -> str:
    """The ends of every sweep in numbers."""
    lines = []
    for sweep in sweeps:
        for network, gains in sweep.gains.items():
            best = max(range(len(gains)), key=gains.__getitem__)
            lines.append(
                (
                    sweep.parameter,
                    network,
                    f"{_percent(gains[0])} at {sweep.values[0]:.4g}",
                    f"{_percent(gains[best])} at {sweep.values[best]:.4g}",
                    f"{_percent(gains[-1])} at {sweep.values[-1]:.4g}",
                )
            )
    return table(("parameter", "network", "first, %", "largest, %", "last, %"), lines)


def asc_wfbp(rows: Sequence[AscRow]) -> str:
    """Returns ASC-WFBP's Tables IV and V, each number next to the paper's."""
    head = (
        "network", "WFBP, s", "MG-WFBP, s", "ASC-WFBP, s", "ASC over WFBP", "ASC over MG-WFBP",
        "S", "S_max", f"ASC-WFBP at gamma = {ASC_GAMMA}, s", "ASC-WFBP by Eq. 40, s",
    )  # fmt: skip
    lines = []
    for row in rows:
        paper = ASC_PAPER[row.network]
        over_wfbp, over_mg_wfbp = ASC_PAPER_SPEEDUPS[row.network]
        values = [
            (row.wfbp, paper.wfbp),
            (row.mg_wfbp, paper.mg_wfbp),
            (row.asc_wfbp, paper.asc_wfbp),
            (row.wfbp / row.asc_wfbp, over_wfbp),
            (row.mg_wfbp / row.asc_wfbp, over_mg_wfbp),
            (row.speedup, paper.speedup),
            (row.largest_speedup, paper.largest_speedup),
        ]
        cells = [
            f"{ours:#.3g} ({theirs:#.3g}, {ours / theirs - 1:+.0%})" for ours, theirs in values
        ]
        lines.append((row.network, *cells, f"{row.measured_gamma:.3g}", f"{row.equation_40:.3g}"))
    return table(head, lines) + (
        f"\nIn brackets: the paper's, and the difference to it. gamma = {asc_gamma():.3f}, but for "
        "the column that says otherwise.\n"
    )


def _range(values: tuple[float, float]) -> str:
    low, high = map(_percent, values)
    return low if low == high else f"{low} to {high}"


def _percent(value: float) -> str:
    return f"{round(value, 1) + 0.0:.1f}"  # no -0.0


def _counts(threads: Sequence[int]) -> str:
    """Returns the number of groups by number of threads."""
    counts = sorted(Counter(threads).items())
    return ", ".join(f"{times} of {count}" for count, times in counts)
