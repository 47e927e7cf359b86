"""A pipeline in words."""

from tf_libra.model.layers import LayerGraph
from tf_libra.model.pipeline import PipelinePlan
from tf_libra.pipelines.executing import Execution


def in_a_line(plan: PipelinePlan) -> str:
    """Who computes what, and what is predicted."""
    stages = "; ".join(_stage(plan, index) for index in range(len(plan.stages)))
    return (
        f"{_kind(plan)}, {plan.num_microbatches} microbatches, predicted"
        f" {1e3 * (plan.predicted_seconds or 0.0):.1f} ms: {stages}"
    )


def _kind(plan: PipelinePlan) -> str:
    count = len(plan.stages)
    return "data parallelism" if count == 1 else f"a pipeline of {count} stages"


def _stage(plan: PipelinePlan, index: int) -> str:
    stage = plan.stages[index]
    first, last = plan.layer_names[stage.start], plan.layer_names[stage.stop - 1]
    layers = first if first == last else f"{first} to {last}"
    ranks = ", ".join(map(str, stage.devices))
    return f"{layers} on rank{'s' if len(stage.devices) > 1 else ''} {ranks}"


def explained(name: str, plan: PipelinePlan, layers: LayerGraph, execution: Execution) -> str:
    """The plan, what it was made of, and what this rank's last step took."""
    kind = (
        "data parallelism" if len(plan.stages) == 1 else f"a pipeline of {len(plan.stages)} stages"
    )
    lines = [
        f"{name}: {kind} under {plan.strategy}, {plan.num_microbatches} microbatches",
        f"predicted iteration: {1e3 * (plan.predicted_seconds or 0.0):.2f} ms",
        "",
        f"{'stage':>5}  {'forward':>9}  {'backward':>9}  {'parameters':>10}  {'sends':>9}  layers",
    ]
    for index, stage in enumerate(plan.stages):
        own = slice(stage.start, stage.stop)
        sends = 0.0 if stage.stop == len(layers.layers) else layers.activation_bytes[stage.stop - 1]
        lines.append(
            f"{index:>5}  {1e3 * layers.forward_seconds[own].sum():>6.2f} ms"
            f"  {1e3 * layers.backward_seconds[own].sum():>6.2f} ms"
            f"  {layers.parameter_bytes[own].sum() / 1e6:>7.2f} MB"
            f"  {sends / 1e6:>6.2f} MB  {_stage(plan, index)}"
        )
    lines += ["", "of one microbatch on one rank; what is sent is of one microbatch, one way"]
    if execution.executed:
        end = max(one.stop_seconds for one in execution.executed)
        busy = sum(one.stop_seconds - one.start_seconds for one in execution.executed)
        lines.append(
            f"this rank, of stage {execution.stages[0]}, computed {1e3 * busy:.2f} ms of the"
            f" {1e3 * end:.2f} ms until its last microbatch of the last step; else it waited"
        )
    lines += [f"note: {note}" for note in plan.notes]
    return "\n".join(line[:100] for line in lines)
