"""The papers' evaluations, computed with the planners and the simulator."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import tf_libra
from benchmarks.paper.parameters import (
    ASC_BANDWIDTH,
    ASC_GAMMA,
    AscWorkload,
    Parameters,
    Workload,
    asc_cost,
    asc_gamma,
)
from benchmarks.predicted import predicted_seconds
from tf_libra import strategies
from tf_libra.planning.compare import PlanComparison, ideal
from tf_libra.planning.compare import compare as side_by_side

IDEAL = "MG-CF"
CLUSTERS = tuple(2**power for power in range(4, 12))  # 16 to 2048 nodes


@dataclass(frozen=True)
class Row:
    """One strategy on one network.

    Attributes:
      network: its name.
      strategy: the paper's name of it.
      workers: nodes.
      throughput: samples per second of the whole cluster.
      forward_seconds, backward_seconds: of a step.
      computation_seconds: when backward computation ends, with what contention adds to it.
      communication_seconds: the sum of all all-reduces, overlapped or not.
      residual_seconds: communication that nothing overlaps.
      groups: all-reduces per step.
      threads: their threads, in order.
    """

    network: str
    strategy: str
    workers: int
    throughput: float
    forward_seconds: float
    backward_seconds: float
    computation_seconds: float
    communication_seconds: float
    residual_seconds: float
    groups: int
    threads: tuple[int, ...]

    @property
    def step_seconds(self) -> float:
        """Forward and backward."""
        return self.forward_seconds + self.backward_seconds


def compare(parameters: Parameters, workload: Workload, workers: int | None = None) -> list[Row]:
    """All strategies and the ideal on one network, in the paper's order."""
    cost = workload.cost if workers is None else workload.cost.with_workers(workers)
    named = parameters.strategies()
    bound = ideal(workload.profile, cost, min(named["MG-WFBP"].allowed_threads))
    return [
        *(
            _row(workload, row.name, _planned(row), cost)
            for row in side_by_side(workload.profile, cost, named)
        ),
        _row(workload, IDEAL, _planned(bound), cost.contention_free()),
    ]


def _planned(compared: PlanComparison) -> tf_libra.Plan:
    if compared.plan is None:
        raise ValueError(f"{compared.name}: {compared.problem}")
    return compared.plan


def _row(workload: Workload, name: str, plan: tf_libra.Plan, cost: tf_libra.ContentionModel) -> Row:
    timeline = tf_libra.simulate(workload.profile, plan, cost)
    backward = timeline.backward_seconds
    step = workload.forward_seconds + backward
    return Row(
        network=workload.name,
        strategy=name,
        workers=cost.num_workers,
        throughput=cost.num_workers * workload.batch / step,
        forward_seconds=workload.forward_seconds,
        backward_seconds=backward,
        computation_seconds=timeline.computation_end_seconds,
        communication_seconds=sum(s.end_seconds - s.start_seconds for s in timeline.groups),
        residual_seconds=sum(s.residual_communication_seconds for s in timeline.stages),
        groups=len(plan.groups),
        threads=tuple(group.num_threads for group in plan.groups),
    )


def on_testbed(parameters: Parameters) -> list[Row]:
    """Figs. 6 to 8 of LIBRA's paper."""
    return [row for workload in parameters.workloads for row in compare(parameters, workload)]


def scaled_out(parameters: Parameters, clusters: Sequence[int] = CLUSTERS) -> list[Row]:
    """Fig. 9 of LIBRA's paper."""
    return [
        row
        for workload in parameters.workloads
        for workers in clusters
        for row in compare(parameters, workload, workers)
    ]


def largest(parameters: Parameters) -> list[Row]:
    """VGG16, or else the first network, on the largest cluster of Fig. 9."""
    named = {workload.name: workload for workload in parameters.workloads}
    workload = named.get("VGG16", parameters.workloads[0])
    return compare(parameters, workload, max(CLUSTERS))


def per_node(parameters: Parameters, row: Row) -> float:
    """Throughput per node over that of a single node, as Fig. 9 shows it."""
    [workload] = [w for w in parameters.workloads if w.name == row.network]
    alone = workload.forward_seconds + float(workload.profile.compute_after[0])
    return alone / row.step_seconds


# Of a figure that the paper gives without saying how it was taken over the networks.
FIGURE_6_MEAN = " (computed: mean)"


@dataclass(frozen=True)
class Claim:
    """A figure in the text of LIBRA's paper.

    Attributes:
      text: what it is.
      where: in the paper.
      paper: least and largest over the networks, or the same number twice for a single figure.
      ours: the same, computed here.
    """

    text: str
    where: str
    paper: tuple[float, float]
    ours: tuple[float, float]


def claims(testbed: Iterable[Row], largest: Iterable[Row]) -> list[Claim]:
    """Compares the paper's figures with ours, in percent.

    Args:
      testbed: what `on_testbed` returns.
      largest: rows of one network, VGG16 in the paper, on the largest cluster.
    """
    rows = {(row.network, row.strategy): row for row in testbed}
    networks = list(dict.fromkeys(network for network, _ in rows))

    def faster(row: Row, other: Row) -> float:
        return row.throughput / other.throughput - 1

    def less(row: Row, other: Row) -> float:
        return 1 - row.backward_seconds / other.backward_seconds

    def above(row: Row, other: Row) -> float:
        return row.backward_seconds / other.backward_seconds - 1

    whole = "throughput"
    found: list[tuple[str, str, str, float | tuple[float, float]]] = [
        ("LIBRA", whole, "SynEASGD", (11.3, 26.9)),
        ("LIBRA", whole, "Horovod", (5.8, 13.8)),
        ("LIBRA", whole, "MG-WFBP", (4.2, 6.2)),
        ("LIBRA-M", whole, "MG-WFBP", 4.1),
        (IDEAL, whole, "MG-WFBP", 10.7),
        (IDEAL, whole, "LIBRA", 5.5),
        ("LIBRA", "backward saved", "SynEASGD", (12.1, 29.1)),
        ("LIBRA", "backward saved", "Horovod", (10.1, 20.4)),
        ("LIBRA", "backward saved", "MG-WFBP", (5.6, 13.0)),
        ("MG-WFBP", "backward added", IDEAL, 22.5),
        ("LIBRA", "backward added", IDEAL, 10.9),
        ("LIBRA-M", "residual saved", "MG-WFBP", 11.0),
        ("LIBRA", "residual saved", "MG-WFBP", 50.1),
    ]
    values = {
        whole: faster,
        "backward saved": less,
        "backward added": above,
    }
    result = []
    for strategy, measure, other, paper in found:
        if measure == "residual saved":
            # Of all networks together: of a residual that is next to none, any share may be saved.
            left = [
                sum(rows[n, name].residual_seconds for n in networks) for name in (strategy, other)
            ]
            computed = [100 * (1 - left[0] / left[1])]
        else:
            computed = [100 * values[measure](rows[n, strategy], rows[n, other]) for n in networks]
        where = "Fig. 6" if measure == whole else "Fig. 7"
        text = f"{strategy} over {other}: {measure}"
        if isinstance(paper, tuple):
            result.append(Claim(text, where, paper, (min(computed), max(computed))))
        else:
            # The text calls its figures of Fig. 7 averages, and does not say so of Fig. 6.
            label = f"{text}{FIGURE_6_MEAN if where == 'Fig. 6' else ', mean'}"
            mean = sum(computed) / len(computed)
            result.append(Claim(label, where, (paper, paper), (mean, mean)))
    far = {row.strategy: row for row in largest}
    for other, paper in (("Horovod", 20.0), ("MG-WFBP", 21.0)):
        ours = 100 * faster(far["LIBRA"], far[other])
        libra = far["LIBRA"]
        text = f"LIBRA over {other}: throughput, {libra.network} on {libra.workers} nodes"
        result.append(Claim(text, "Fig. 9", (paper, paper), (ours, ours)))
    return result


@dataclass(frozen=True)
class AscRow:
    """One network on ASC-WFBP's testbed: seconds per iteration, and the largest speedup.

    Attributes:
      network: its name.
      wfbp, mg_wfbp, asc_wfbp: seconds, forward and backward.
      speedup: S of ASC-WFBP over one worker.
      largest_speedup: S_max of Eq. 42.
      measured_gamma: seconds of ASC-WFBP with the gamma that the paper measured, where two
        concurrent all-reduces send more than the link's bandwidth; None for the paper's own.
      equation_40: seconds of ASC-WFBP by the rule as it is printed; None for the paper's own.
    """

    network: str
    wfbp: float
    mg_wfbp: float
    asc_wfbp: float
    speedup: float
    largest_speedup: float
    measured_gamma: float | None = None
    equation_40: float | None = None


# Tables IV and V.
ASC_PAPER = {
    "ResNet-152": AscRow("ResNet-152", 0.956, 0.710, 0.524, 16.7, 17.5),
    "DenseNet-201": AscRow("DenseNet-201", 0.778, 0.375, 0.314, 22.3, 32.0),
    "Inception-v4": AscRow("Inception-v4", 0.719, 0.510, 0.377, 16.1, 17.2),
    "BERT-Base": AscRow("BERT-Base", 1.010, 1.062, 0.924, 10.6, 11.5),
}
# S_1 and S_2 of Table IV: ASC-WFBP over WFBP and over MG-WFBP, as they are printed. The seconds are
# rounded, so that their quotients differ in the last digit.
ASC_PAPER_SPEEDUPS = {
    "ResNet-152": (1.82, 1.35),
    "DenseNet-201": (2.48, 1.20),
    "Inception-v4": (1.91, 1.35),
    "BERT-Base": (1.09, 1.15),
}


def asc_wfbp(workloads: Iterable[AscWorkload]) -> list[AscRow]:
    """Tables IV and V of ASC-WFBP's paper."""
    cost = asc_cost()
    rows = []
    for workload in workloads:
        seconds = [
            workload.forward_seconds
            + predicted_seconds(tf_libra.make_plan(workload.profile, cost, strategy))
            for strategy in (
                strategies.Wfbp(),
                strategies.MgWfbp(),
                strategies.AscWfbp(contention=asc_gamma()),
                strategies.AscWfbp(contention=ASC_GAMMA),
                strategies.AscWfbp(contention=asc_gamma(), rule="equation-40"),
            )
        ]
        backward = float(workload.profile.compute_after[0])
        alone = workload.forward_seconds + backward
        workers = cost.num_workers
        least = 2 * workload.million_parameters * 1e6 * 32 / ASC_BANDWIDTH  # Eq. 43
        largest = workers * alone / (alone + least - min(backward, least))  # Eq. 42
        wfbp, mg_wfbp, found, measured, printed = seconds
        rows.append(
            AscRow(
                workload.name,
                wfbp,
                mg_wfbp,
                found,
                workers * alone / found,
                largest,
                measured,
                printed,
            )
        )
    return rows
