"""SPP's studies: Table III and Figs. 6 to 11, each as rows of iteration times by strategy."""

import dataclasses
from collections.abc import Sequence

import numpy as np

import tf_libra
from benchmarks.predicted import predicted_seconds
from benchmarks.spp import parameters
from tf_libra import strategies
from tf_libra.model_parallel.planning.pipeline.baselines import equal_groups
from tf_libra.model_parallel.planning.pipeline.device_ordering import device_order
from tf_libra.model_parallel.planning.pipeline.partitioning import Partitions
from tf_libra.model_parallel.planning.pipeline.strategy import PipelineStrategy

STRATEGIES: dict[str, PipelineStrategy] = {
    "SPP": strategies.Spp(),
    "DP": strategies.DataParallel(),
    "GPipe": strategies.GPipe(),
    "PipeDream": strategies.PipeDream(),
    "HetPipe": strategies.HetPipe(),
}

# Table II: microbatches, samples of one; BERT-48 has 2 on V100 x 4.
MODELS = {
    "VGG19": (8, 32),
    "ResNet152": (4, 4),
    "Inception-V3": (8, 32),
    "Transformer": (8, 32),
    "BERT-large": (4, 4),
    "XLNet-large": (4, 4),
    "BERT-48": (4, 4),
}
# Table III, seconds, in the order of STRATEGIES; None: out of memory, or not measured.
TABLE_III = {
    ("VGG19", "1080Ti x 8"): (1.799, 2.882, 2.120, 1.949, 2.696),
    ("VGG19", "V100 x 4"): (0.983, 1.245, 1.004, 1.024, None),
    ("ResNet152", "1080Ti x 8"): (0.732, 0.896, 1.214, None, 0.843),
    ("ResNet152", "V100 x 4"): (0.832, 1.209, 1.041, 0.873, None),
    ("Inception-V3", "1080Ti x 8"): (0.303, 0.420, 0.551, 0.656, 0.408),
    ("Inception-V3", "V100 x 4"): (0.357, 0.663, 0.587, 0.919, None),
    ("Transformer", "1080Ti x 8"): (0.640, 0.944, 1.234, 1.118, 0.766),
    ("Transformer", "V100 x 4"): (1.065, 2.533, 1.487, 1.830, None),
    ("BERT-large", "1080Ti x 8"): (0.409, 0.524, 0.472, 0.421, 0.525),
    ("BERT-large", "V100 x 4"): (0.952, 2.269, 1.665, 1.084, None),
    ("XLNet-large", "1080Ti x 8"): (1.299, 1.388, 1.696, 1.384, 1.628),
    ("XLNet-large", "V100 x 4"): (1.437, 1.842, 1.720, 1.690, None),
    ("BERT-48", "1080Ti x 8"): (0.762, None, 1.885, 1.266, 1.377),
    ("BERT-48", "V100 x 4"): (0.855, 1.656, 1.199, 1.160, None),
}
# Its speed-ups of SPP in percent, as they are printed. The seconds are rounded, so that their
# quotients differ in the last digit.
TABLE_III_PERCENT: dict[tuple[str, str], tuple[float | None, ...]] = {
    ("VGG19", "1080Ti x 8"): (60.2, 17.9, 8.3, 49.9),
    ("VGG19", "V100 x 4"): (26.7, 2.1, 4.2, None),
    ("ResNet152", "1080Ti x 8"): (22.4, 65.8, None, 15.2),
    ("ResNet152", "V100 x 4"): (45.3, 25.1, 4.9, None),
    ("Inception-V3", "1080Ti x 8"): (38.6, 81.8, 116.5, 34.7),
    ("Inception-V3", "V100 x 4"): (85.7, 64.4, 157.4, None),
    ("Transformer", "1080Ti x 8"): (47.5, 92.8, 74.7, 19.7),
    ("Transformer", "V100 x 4"): (137.8, 39.6, 71.8, None),
    ("BERT-large", "1080Ti x 8"): (28.1, 15.4, 2.9, 28.4),
    ("BERT-large", "V100 x 4"): (138.3, 74.9, 13.9, None),
    ("XLNet-large", "1080Ti x 8"): (6.7, 30.6, 6.5, 25.3),
    ("XLNet-large", "V100 x 4"): (28.3, 19.7, 17.6, None),
    ("BERT-48", "1080Ti x 8"): (None, 147.4, 66.1, 80.7),
    ("BERT-48", "V100 x 4"): (93.7, 40.2, 35.7, None),
}


@dataclasses.dataclass(frozen=True)
class Row:
    """One setting: seconds per iteration by strategy, and SPP's stages."""

    setting: str
    seconds: dict[str, float]
    stages: str


@dataclasses.dataclass(frozen=True)
class StagesRow:
    """One number of stages: W of PRM and the iteration."""

    stages: int
    bottleneck_seconds: float
    iteration_seconds: float


def iteration(
    name: str, layers: tf_libra.LayerGraph, cluster: tf_libra.Cluster, microbatches: int
) -> tf_libra.PipelinePlan:
    """The plan of a strategy, whose prediction is the iteration."""
    nodes = len(equal_groups(cluster))
    if name == "HetPipe" and microbatches % nodes == 0:
        # Nodes take turns at whole microbatches: one each at a time, nodes times the samples.
        layers = _scaled(layers, forward=nodes, backward=nodes, sent=nodes)
        microbatches //= nodes
    return tf_libra.make_pipeline_plan(
        layers, cluster, STRATEGIES[name], num_microbatches=microbatches
    )


def _scaled(
    layers: tf_libra.LayerGraph,
    *,
    forward: float = 1.0,
    backward: float = 1.0,
    weights: float = 1.0,
    sent: float = 1.0,
) -> tf_libra.LayerGraph:
    """The same layers, with so many times the seconds, or bytes."""
    return tf_libra.LayerGraph.chain(
        forward * layers.forward_seconds,
        backward * layers.backward_seconds,
        weights * layers.parameter_bytes,
        sent * layers.cut_bytes,
        layers.names,
    )


def _row(
    setting: str, layers: tf_libra.LayerGraph, cluster: tf_libra.Cluster, microbatches: int
) -> Row:
    plans = {name: iteration(name, layers, cluster, microbatches) for name in STRATEGIES}
    stages = plans["SPP"].stages
    return Row(
        setting,
        {name: predicted_seconds(plan) for name, plan in plans.items()},
        " ".join(f"{s.stop - s.start}x{len(s.devices)}" for s in stages),
    )


def figure_6(counts: Sequence[int] = (8, 16, 32, 64, 128)) -> list[Row]:
    """Different numbers of microbatches."""
    layers, cluster = parameters.bert(), parameters.servers()
    return [_row(str(count), layers, cluster, count) for count in counts]


def figure_7() -> list[Row]:
    """Different bandwidths between servers."""
    levels = {"low": (8.0, 10.0), "medium": parameters.INTER_SERVER, "high": (80.0, 100.0)}
    return [
        _row(
            f"{name}, {low:g} to {high:g} Gbit/s",
            parameters.bert(),
            parameters.servers(between=(low, high)),
            parameters.MICROBATCHES,
        )
        for name, (low, high) in levels.items()
    ]


def figure_8() -> list[Row]:
    """Different servers, 32 GPUs in all."""
    shapes = {
        "16x2": (2,) * 16,
        "8x4": (4,) * 8,
        "4x8": (8,) * 4,
        "6x2 + 3x4 + 1x8": (2,) * 6 + (4,) * 3 + (8,),
    }
    return [
        _row(name, parameters.bert(), parameters.servers(sizes), parameters.MICROBATCHES)
        for name, sizes in shapes.items()
    ]


def figure_9() -> list[Row]:
    """Different numbers of layers."""
    cluster = parameters.servers()
    return [
        _row(name, parameters.bert(blocks), cluster, parameters.MICROBATCHES)
        for name, blocks in (("BERT-large", 24), ("BERT-48", 48), ("BERT-72", 72))
    ]


def figure_10(factors: Sequence[float] = (0.5, 1, 2, 4)) -> list[Row]:
    """Activations scaled."""
    layers, cluster = parameters.bert(), parameters.servers()
    return [
        _row(
            f"x {factor:g}",
            _scaled(layers, sent=factor),
            cluster,
            parameters.MICROBATCHES,
        )
        for factor in factors
    ]


def figure_11() -> list[StagesRow]:
    """Different numbers of stages, and what PRM says of them."""
    layers, cluster = parameters.bert(), parameters.servers()
    count = parameters.MICROBATCHES
    partitions = Partitions(layers, cluster, device_order(cluster), count)
    rows = []
    for stages in range(1, partitions.max_stages + 1):
        strategy = strategies.Spp(num_stages=stages)
        plan = tf_libra.make_pipeline_plan(layers, cluster, strategy, num_microbatches=count)
        rows.append(StagesRow(stages, partitions.seconds(stages), predicted_seconds(plan)))
    return rows


def table_3() -> list[Row]:
    """The seven models on both testbeds."""
    rows = []
    for name, testbed in TABLE_III:
        microbatches, samples = MODELS[name]
        if (name, testbed) == ("BERT-48", "V100 x 4"):
            samples = 2
        peak = parameters.V100_PEAK if testbed == "V100 x 4" else parameters.GTX1080TI_PEAK
        layers = parameters.model(name, samples, parameters.gpu_rate(peak))
        cluster = parameters.testbed(testbed)
        rows.append(_row(f"{name}, {testbed}", layers, cluster, microbatches))
    return rows


def sensitivity() -> list[Row]:
    """Changes the values that the paper leaves out, one by one, in the default setting."""
    rate = parameters.gpu_rate(parameters.V100_PEAK)
    stated, cluster = parameters.bert(), parameters.servers()
    cases = {"as stated": (stated, cluster)}
    cases |= {f"{n} tokens": (parameters.bert(tokens=n), cluster) for n in (128, 256, 512)}
    cases |= {
        f"GPUs {factor:g} times as fast": (parameters.bert(rate=factor * rate), cluster)
        for factor in (0.5, 2, 4)
    }
    cases |= {
        f"backward {factor:g} times forward": (_backward(stated, factor), cluster)
        for factor in (1.5, 3)
    }
    cases["2 bytes per number"] = (_scaled(stated, weights=0.5, sent=0.5), cluster)
    cases["two blocks a layer"] = (_coarser(stated), cluster)
    cases |= {
        f"PCIe in {count} servers": (stated, parameters.servers(num_slow=count)) for count in (0, 8)
    }
    cases |= {
        f"links drawn again, {seed}": (stated, parameters.servers(seed=seed)) for seed in (1, 2, 3)
    }
    return [_row(name, *case, parameters.MICROBATCHES) for name, case in cases.items()]


def table_3_sensitivity() -> list[Row]:
    """Makes similar changes for one model on both testbeds."""
    microbatches, samples = MODELS["BERT-large"]
    rows = []
    for testbed, peak in (
        ("1080Ti x 8", parameters.GTX1080TI_PEAK),
        ("V100 x 4", parameters.V100_PEAK),
    ):
        rate, cluster = parameters.gpu_rate(peak), parameters.testbed(testbed)
        stated = parameters.bert(samples=samples, rate=rate)
        cases = {
            "as stated": (stated, cluster),
            "GPUs twice as fast": (parameters.bert(samples=samples, rate=2 * rate), cluster),
            "backward 3 times forward": (_backward(stated, 3), cluster),
            "2 bytes per number": (_scaled(stated, weights=0.5, sent=0.5), cluster),
        }
        cases |= {
            f"{rate:g} Gbit/s within a server": (stated, parameters.testbed(testbed, within=rate))
            for rate in (64.0, 256.0)
        }
        rows += [_row(f"{testbed}: {name}", *case, microbatches) for name, case in cases.items()]
    return rows


def _backward(layers: tf_libra.LayerGraph, factor: float) -> tf_libra.LayerGraph:
    """The same layers, whose backward takes so many times forward; twice where it is as stated."""
    return _scaled(layers, backward=factor / 2)


def _coarser(layers: tf_libra.LayerGraph) -> tf_libra.LayerGraph:
    """Two of these layers make one; the last may stay alone."""
    starts = np.arange(0, len(layers.names), 2)
    forward, backward, size = (
        np.add.reduceat(costs, starts)
        for costs in (layers.forward_seconds, layers.backward_seconds, layers.parameter_bytes)
    )
    return tf_libra.LayerGraph.chain(
        forward,
        backward,
        size,
        layers.cut_bytes[starts[1:] - 1],
        tuple(layers.names[start] for start in starts),
    )


def claims(
    seven: Sequence[Row],
    bandwidths: Sequence[Row],
    models: Sequence[Row],
    activations: Sequence[Row],
    stages: Sequence[StagesRow],
) -> list[tuple[str, str, str]]:
    """Returns the paper's statements on its figures, and the same of ours."""

    def spread(rows: Sequence[Row], name: str) -> str:
        seconds = [row.seconds[name] for row in rows]
        return f"{name} {max(seconds) / min(seconds):.2f}"

    most = {
        name: max(row.seconds[name] / row.seconds["SPP"] - 1 for row in seven)
        for name in ("GPipe", "PipeDream", "HetPipe", "DP")
    }
    others = [name for name in STRATEGIES if name != "SPP"]
    columns = zip(others, zip(*TABLE_III_PERCENT.values(), strict=True), strict=True)
    printed = {name: max(value for value in column if value) for name, column in columns}
    faster = [row.seconds["PipeDream"] / row.seconds["SPP"] - 1 for row in models]
    best = min(stages, key=lambda row: row.iteration_seconds)
    least = min(row.bottleneck_seconds for row in stages)
    stable = next(row.stages for row in stages if row.bottleneck_seconds <= 1.05 * least)
    return [
        (
            "most that SPP is faster on the testbeds (Table III)",
            ", ".join(f"{name} {printed[name]} %" for name in most),
            ", ".join(f"{name} {100 * value:.0f} %" for name, value in most.items()),
        ),
        (
            "iteration at the lowest over that at the highest bandwidth (Fig. 7)",
            "SPP, GPipe and PipeDream stable; DP and HetPipe drop",
            ", ".join(spread(bandwidths, name) for name in STRATEGIES),
        ),
        (
            "SPP faster than PipeDream, 24, 48 and 72 blocks (Fig. 9)",
            "more than 20 % on each",
            ", ".join(f"{100 * value:.0f} %" for value in faster),
        ),
        (
            "longest over shortest iteration as activations grow (Fig. 10)",
            "SPP similar throughout",
            ", ".join(spread(activations, name) for name in STRATEGIES),
        ),
        (
            "stages from which on the bottleneck is stable, within 5 % (Fig. 11)",
            "4",
            str(stable),
        ),
        ("stages that SPP chooses (Fig. 11)", "6", str(best.stages)),
    ]
