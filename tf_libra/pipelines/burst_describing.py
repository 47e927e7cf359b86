"""A burst plan in words."""

import itertools
import textwrap

from tf_libra.model.burst import BurstPlan
from tf_libra.pipelines.executing import Execution

_BAR = 8
_COLUMNS = 100


def in_a_line(plan: BurstPlan) -> str:
    """Who computes what, and what is predicted."""
    stages = []
    start = 0
    for (first, count), layers in itertools.groupby(
        zip(plan.first_devices, plan.num_devices, strict=True)
    ):
        stop = start + len(list(layers))
        names = plan.layer_names[start], plan.layer_names[stop - 1]
        shown = names[0] if stop == start + 1 else f"{names[0]} to {names[1]}"
        stages.append(f"{shown} on {_ranks(first, count)}")
        start = stop
    return f"predicted {1e3 * plan.iteration_seconds:.1f} ms: {'; '.join(stages)}"


def _ranks(first: int, count: int) -> str:
    return f"rank {first}" if count == 1 else f"ranks {first} to {first + count - 1}"


def explained(
    name: str, plan: BurstPlan, execution: Execution, measured_seconds: float | None = None
) -> str:
    """The plan, devices per layer as steps, and what this rank's last step took.

    Args:
        name: of the step.
        plan: that it runs under.
        execution: on this rank.
        measured_seconds: what a step takes under the plan; None where that is not known.
    """
    limit = "without a limit on amplification"
    if plan.max_amplification is not None:
        limit = f"amplification at most {plan.max_amplification:g}"
    lines = [
        f"{name}: a burst plan under {plan.strategy}, {limit}",
        f"predicted iteration: {1e3 * plan.iteration_seconds:.2f} ms,"
        f" {1e3 * plan.device_seconds:.2f} ms of all ranks together",
        *(
            []
            if measured_seconds is None
            else [f"measured iteration: {1e3 * measured_seconds:.2f} ms, with its updates"]
        ),
        "",
        f"{'ranks':>5}  {'comes in':>10}  {'computes':>10}  {'all-reduce':>10}"
        f"  {'amplified':>9}  layers",
    ]
    comes_in = plan.transition_seconds
    most = max(plan.num_devices)
    for layer, (layer_name, count) in enumerate(
        zip(plan.layer_names, plan.num_devices, strict=True)
    ):
        own = [span for span in plan.spans if span.layer == layer]
        compute, synchronize = (
            sum(span.seconds for span in own if span.kind == kind)
            for kind in ("compute", "synchronize")
        )
        bar = "#" * max(1, _BAR * count // most)
        lines.append(
            f"{count:>5}  {1e3 * comes_in[layer]:>7.2f} ms  {1e3 * compute:>7.2f} ms"
            f"  {1e3 * synchronize:>7.2f} ms  {plan.amplification[layer]:>9.2f}"
            f"  {bar:<{_BAR}}  {_place(plan, layer)}{layer_name}"
        )
    idle = ", ".join(f"{1e3 * seconds:.2f}" for seconds in plan.idle_seconds)
    lines += ["", "of the whole batch, forward and backward"]
    lines += textwrap.wrap(f"from rank 0 on, ranks are idle for {idle} ms", _COLUMNS)
    busy = sum(one.stop_seconds - one.start_seconds for one in execution.executed)
    if execution.executed:
        end = max(one.stop_seconds for one in execution.executed)
        lines.append(
            f"this rank computed {1e3 * busy:.2f} ms of the {1e3 * end:.2f} ms until its last"
            " layer of the last step; else it waited"
        )
    else:
        lines.append("this rank has no layer: it only updates what no layer has")
    for note in plan.notes:
        lines += textwrap.wrap(f"note: {note}", _COLUMNS)
    return "\n".join(line[:_COLUMNS] for line in lines)


def _place(plan: BurstPlan, layer: int) -> str:
    """Where a layer runs that does not begin at rank 0."""
    first = plan.first_devices[layer]
    return f"from rank {first} on: " if first else ""
