"""`tf-libra pipeline`: plans pipelines, simulates them, and compares strategies."""

from collections.abc import Sequence
from typing import Any

from absl import flags

from tf_libra.cli.command import (
    Command,
    define_plot,
    flag_path,
    flag_value,
    integers,
    print_json,
    read_flag,
    run_family,
    write,
)
from tf_libra.cli.strategy_flags import (
    define_arguments,
    define_strategy,
    is_plan_passed,
    named_strategy,
    passed_arguments,
)
from tf_libra.internal import formatting
from tf_libra.model_parallel.planning.pipeline import BY_NAME, make_pipeline_plan
from tf_libra.model_parallel.planning.pipeline.planner import compare
from tf_libra.model_parallel.simulation import PipelineTimeline, simulate_pipeline
from tf_libra.specs.cluster import Cluster
from tf_libra.specs.layer_graph import LayerGraph
from tf_libra.specs.pipeline import PipelinePlan

PROGRAM = "tf-libra pipeline"


def main(arguments: Sequence[str]) -> int:
    """Run `tf-libra pipeline` and return its exit status, as defined by `tf_libra.cli.command`."""
    return run_family(PROGRAM, COMMANDS, arguments)


def _define_inputs(values: flags.FlagValues) -> None:
    flags.DEFINE_string("layers", None, "JSON file of the layers (required)", flag_values=values)
    flags.DEFINE_string("cluster", None, "JSON file of the cluster (required)", flag_values=values)
    define_plot(values)


def _define_plan(values: flags.FlagValues) -> None:
    _define_inputs(values)
    define_strategy(values, BY_NAME, "spp")
    flags.DEFINE_integer(
        "num_microbatches", None, "M, microbatches per iteration (required)", flag_values=values
    )
    flags.DEFINE_string("out", None, "write the plan there, not to stdout", flag_values=values)
    define_arguments(values, BY_NAME, without=("num_microbatches",))


def _define_simulate(values: flags.FlagValues) -> None:
    _define_inputs(values)
    flags.DEFINE_string("plan", None, "JSON file of a plan", flag_values=values)
    define_strategy(values, BY_NAME, None)
    flags.DEFINE_list(
        "num_microbatches", None, "numbers of microbatches, for a strategy", flag_values=values
    )
    flags.DEFINE_bool("json", False, "print JSON instead of a table", flag_values=values)
    define_arguments(values, BY_NAME, without=("num_microbatches",))


def _define_compare(values: flags.FlagValues) -> None:
    _define_inputs(values)
    flags.DEFINE_integer(
        "num_microbatches", None, "M, microbatches per iteration (required)", flag_values=values
    )
    flags.DEFINE_bool("json", False, "print JSON instead of a table", flag_values=values)
    define_arguments(values, BY_NAME, without=("num_microbatches",))


def _plan(values: flags.FlagValues, _: list[str]) -> None:
    layers, cluster = _inputs(values)
    plan = _planned(values, layers, cluster, flag_value(values, "num_microbatches"))
    write(flag_value(values, "out"), plan.to_json() + "\n")
    _plot(values, [(plan.strategy, plan, simulate_pipeline(layers, plan, cluster))])


def _simulate(values: flags.FlagValues, _: list[str]) -> None:
    layers, cluster = _inputs(values)
    counts = flag_value(values, "num_microbatches")
    if is_plan_passed(values):
        if counts:
            raise ValueError(
                "num_microbatches must be those of the plan, and so not given, got "
                f"{','.join(counts)}"
            )
        plans = [read_flag(values, "plan", PipelinePlan.from_json)]
    else:
        numbers: Sequence[int | None] = integers("num_microbatches", counts) or [None]
        plans = [_planned(values, layers, cluster, number) for number in numbers]
    simulated = [
        (
            f"{plan.strategy}, {plan.num_microbatches} microbatches",
            plan,
            simulate_pipeline(layers, plan, cluster),
        )
        for plan in plans
    ]
    _print([_row(*row) for row in simulated], bool(flag_value(values, "json")))
    _plot(values, simulated)


def _compare(values: flags.FlagValues, _: list[str]) -> None:
    layers, cluster = _inputs(values)
    count = flag_value(values, "num_microbatches")
    if count is None:
        raise ValueError("num_microbatches must be given, at least 1, got None")
    strategies = {name: kind(**passed_arguments(values, kind)) for name, kind in BY_NAME.items()}
    rows: list[dict[str, Any]] = []
    pictures = []
    for row in compare(layers, cluster, strategies, count):
        if row.plan is None or row.timeline is None:
            rows.append({"plan": row.name, "problem": row.problem})
            continue
        rows.append(_row(row.name, row.plan, row.timeline))
        pictures.append((row.name, row.plan, row.timeline))
    _print(rows, bool(flag_value(values, "json")))
    _plot(values, pictures)


COMMANDS = {
    "plan": Command(
        "cut a model into stages, give them devices, and order microbatches", _define_plan, _plan
    ),
    "simulate": Command(
        "what an iteration takes, of a plan or of a strategy, over numbers of microbatches",
        _define_simulate,
        _simulate,
    ),
    "compare": Command("all strategies in one table", _define_compare, _compare),
}


def _inputs(values: flags.FlagValues) -> tuple[LayerGraph, Cluster]:
    for name in ("layers", "cluster"):
        flag_path(values, name)  # checks both flags before it reads a file
    return (
        read_flag(values, "layers", LayerGraph.from_json),
        read_flag(values, "cluster", Cluster.from_json),
    )


def _planned(
    values: flags.FlagValues, layers: LayerGraph, cluster: Cluster, num_microbatches: int | None
) -> PipelinePlan:
    strategy = named_strategy(values, BY_NAME)
    return make_pipeline_plan(layers, cluster, strategy, num_microbatches=num_microbatches)


def _row(title: str, plan: PipelinePlan, timeline: PipelineTimeline) -> dict[str, Any]:
    # Shares are computed before the sum, which would overflow for the largest finite seconds.
    computing = sum(
        block.seconds / timeline.iteration_seconds * len(plan.stages[block.stage].devices)
        for block in timeline.blocks
        if block.kind in ("forward", "backward") and block.seconds
    )
    return {
        "plan": title,
        "iteration_seconds": timeline.iteration_seconds,
        "idle_share": 1 - computing / plan.num_devices if timeline.iteration_seconds else 0.0,
        "all_reduce_seconds": max(
            (block.seconds for block in timeline.blocks if block.kind == "all_reduce"), default=0.0
        ),
        "layers": [stage.stop - stage.start for stage in plan.stages],
        "replicas": [len(stage.devices) for stage in plan.stages],
    }


def _print(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    print(f"{'plan':<28}{'iteration':>14}{'idle':>8}{'all-reduce':>14}  stages: layers x replicas")
    for row in rows:
        if "problem" in row:
            print(f"{row['plan']:<28}{row['problem']}")
            continue
        stages = " ".join(
            f"{layers}x{replicas}"
            for layers, replicas in zip(row["layers"], row["replicas"], strict=True)
        )
        print(
            f"{row['plan']:<28}{formatting.time(row['iteration_seconds']):>14}{formatting.percent(row['idle_share']):>8}"
            f"{formatting.time(row['all_reduce_seconds']):>14}  {stages}"
        )


def _plot(
    values: flags.FlagValues, pictures: list[tuple[str, PipelinePlan, PipelineTimeline]]
) -> None:
    if flag_value(values, "plot"):
        from tf_libra.model_parallel.simulation.plots import plot_pipelines

        plot_pipelines(pictures, flag_value(values, "plot"))
