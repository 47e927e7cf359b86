"""The evaluation as Markdown, for the marks of a document (`benchmarks.paper.document`)."""

from collections.abc import Sequence

from benchmarks.deeppool import evaluation
from benchmarks.deeppool.claims import Claim
from benchmarks.deeppool.evaluation import Row, Scaled, Setting, Workload
from benchmarks.deeppool.models import TITLES
from benchmarks.deeppool.sensitivity import Sensitivity
from benchmarks.markdown import table


def parameters(setting: Setting) -> str:
    """Returns a table of what the paper and the published times state, and what they leave out."""
    parameters, interference = setting.parameters, setting.interference
    rows = [
        ("layer times", "one A100, mixed precision", "published by the authors"),
        (
            "layer times above 64 samples",
            "in proportion",
            "not given: 64 is the largest batch measured",
        ),
        (
            "bandwidth of a GPU",
            f"{parameters.bytes_per_second / 1e9:g} GB/s",
            "the authors' planner; Table 2 has NVSwitch's 600 GB/s",
        ),
        (
            "latency of a transfer",
            f"{1e6 * parameters.latency_seconds:g} us",
            "the authors' planner",
        ),
        (
            "bytes per gradient and activation",
            parameters.bytes_per_element,
            "the authors' planner",
        ),
        (
            "a concatenation",
            "its bytes read and written, forward and backward, at "
            f"{parameters.memory_bytes_per_second / 1e9:g} GB/s",
            "not given; the A100's memory (data sheet)",
        ),
        ("Inception-v3's classifier", "VGG-16's last layer", "not given"),
        (
            "all-reduce next to a background job",
            f"x {interference.synchronize_slowdown:g}",
            'section 5: "more than doubles"',
        ),
        (
            "transition next to a background job",
            f"x {interference.transition_slowdown:g}",
            "not given",
        ),
        (
            "computation next to a background job, under priorities",
            f"x {interference.compute_slowdown:g}",
            "not given in numbers (Fig. 12)",
        ),
        ("anything without priorities", f"x {interference.unprioritized_slowdown:g}", "not given"),
        (
            "background during computation",
            "what the layer leaves: 1 - its throughput / that at 64 samples",
            "from the layer times",
        ),
        (
            "background during communication",
            f"x {interference.background_communication:g}",
            "not given",
        ),
        ("background's batch", setting.background_batch, "not given"),
        ("forward's share of a layer's time", "1/3", "not given"),
        ("limit on amplification", "see the tables", "not given"),
        (
            "outstanding launches, feedback",
            "2 launches of one operator, paused above x 1.5",
            "not given",
        ),
    ]
    return table(("parameter", "value", "from"), rows)


def workloads(rows: Sequence[Workload]) -> str:
    """Table 1 and Fig. 5."""
    lines = [
        (
            TITLES[row.network],
            f"{row.layers} ({row.paper_layers})",
            f"{row.parameters:.1f} ({row.paper_parameters:.0f})",
            " / ".join(f"{speedup:.1f}" for speedup in row.speedups),
        )
        for row in rows
    ]
    head = (
        "network",
        "layers (paper)",
        "million parameters (paper)",
        "speedup of layers, 128 samples on 1 GPU to 2 on each of 64: least / median / largest",
    )
    return table(head, lines)


def rows(found: Sequence[Row]) -> str:
    """Throughputs of Figs. 9 to 11."""
    lines = [
        (
            TITLES[row.network],
            row.scenario,
            "" if row.limit is None else f"{row.limit:g}",
            "" if row.iteration_seconds is None else f"{1e3 * row.iteration_seconds:.2f}",
            f"{row.foreground:.0f}",
            f"{row.background:.0f}",
            f"{row.total:.0f}",
        )
        for row in found
    ]
    head = (
        "network", "scenario", "limit", "iteration, ms", "foreground, samples/s",
        "background, samples/s", "both",
    )  # fmt: skip
    return table(head, lines)


def claims(found: Sequence[Claim]) -> str:
    """Returns a table of the paper's statements next to our results."""
    lines = [(claim.text, claim.where, claim.paper, claim.ours) for claim in found]
    return table(("what", "paper", "paper's", "computed"), lines)


def scaled(found: Sequence[Scaled]) -> str:
    """8 to 1,024 GPUs."""
    lines = []
    for row in found:
        if row.strategy == "limit":
            lines.append(
                (
                    TITLES[row.network],
                    row.gpus,
                    "strong scaling limit",
                    f"{1e3 * row.iteration_seconds:.2f}",
                    f"{row.speedup:.1f}",
                    "",
                    "",
                    "",
                    "",
                )
            )
            continue
        total, slowdown = row.total_over_data_parallel, row.slowdown
        lines.append(
            (
                TITLES[row.network],
                row.gpus,
                row.strategy,
                f"{1e3 * row.iteration_seconds:.2f}",
                f"{row.speedup:.1f}",
                f"{row.device_seconds:.2f}",
                f"{row.idle_share:.0%}",
                "" if total is None else f"{total:.2f}",
                "" if slowdown is None else f"{slowdown - 1:.0%}",
            )
        )
    head = (
        "network", "GPUs", "strategy", "iteration, ms", "speedup", "amplification of the whole",
        "GPUs idle", "with background: total over DP", "foreground slowed by",
    )  # fmt: skip
    text = (
        f"\nA batch of {evaluation.SCALE_BATCH}; speedup and amplification are over one GPU. The "
        "limit has every layer as quick as on any number of GPUs, with free transitions, and no "
        "GPU ever idle.\n"
    )
    return table(head, lines) + text


def sensitivity(found: Sequence[Sensitivity]) -> str:
    """Returns a table of how the figures of Fig. 9 change with one parameter."""
    lines = [
        (
            row.parameter,
            TITLES[row.network],
            f"{row.burst_over_data_parallel:+.0%}",
            f"{row.total_over_data_parallel:+.0%}",
            f"{row.foreground_loss:.0%}",
        )
        for row in found
    ]
    head = (
        "parameter", "network", "foreground, BP over DP", "total, BP + Col over DP",
        "foreground lost by collocation",
    )  # fmt: skip
    return table(head, lines)
