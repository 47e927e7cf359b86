"""`tf-libra burst`: plans bursts, simulates them with background jobs, and compares plans."""

from collections.abc import Sequence
from typing import Any

from absl import flags

from tf_libra.cli.command import (
    Command,
    define_plot,
    flag_value,
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
from tf_libra.model_parallel.planning.burst import (
    BY_NAME,
    make_burst_plan,
    reschedule,
    strong_scaling_limit,
)
from tf_libra.model_parallel.planning.burst.planner import compare
from tf_libra.model_parallel.simulation import BackgroundJob, Multiplexing, simulate_multiplexing
from tf_libra.specs.burst import BurstPlan
from tf_libra.specs.scaling_profile import ScalingProfile

PROGRAM = "tf-libra burst"


def main(arguments: Sequence[str]) -> int:
    """Run `tf-libra burst` and return its exit status, as defined by `tf_libra.cli.command`."""
    return run_family(PROGRAM, COMMANDS, arguments)


def _define_inputs(values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "profile", None, "JSON file of the scaling profile (required)", flag_values=values
    )
    define_plot(values, "devices and gaps")


def _define_plan(values: flags.FlagValues) -> None:
    _define_inputs(values)
    define_strategy(values, BY_NAME, "deeppool")
    flags.DEFINE_string("out", None, "write the plan there, not to stdout", flag_values=values)
    define_arguments(values, BY_NAME)


def _define_simulate(values: flags.FlagValues) -> None:
    _define_inputs(values)
    flags.DEFINE_string("plan", None, "JSON file of a plan", flag_values=values)
    define_strategy(values, BY_NAME, None)
    flags.DEFINE_list(
        "background_seconds", None, "of the background's operators, each alone", flag_values=values
    )
    flags.DEFINE_integer("background_batch", 1, "its samples per iteration", flag_values=values)
    flags.DEFINE_integer(
        "max_outstanding", 2, "its launches at a time; 0: no bound", flag_values=values
    )
    flags.DEFINE_integer(
        "operators_per_graph", 1, "of one launch; 0: a whole iteration", flag_values=values
    )
    flags.DEFINE_bool("priorities", True, "the foreground goes first", flag_values=values)
    flags.DEFINE_float(
        "max_slowdown",
        1.5,
        "pause during steps that slow down by more; 0: never",
        flag_values=values,
    )
    flags.DEFINE_bool("json", False, "print JSON instead of a table", flag_values=values)
    define_arguments(values, BY_NAME)


def _define_compare(values: flags.FlagValues) -> None:
    _define_inputs(values)
    flags.DEFINE_list(
        "max_amplification", ["1.5", "2", "4"], "limits of bursts", flag_values=values
    )
    flags.DEFINE_bool("json", False, "print JSON instead of a table", flag_values=values)
    define_arguments(values, BY_NAME, without=("max_amplification", "num_devices"))


def _plan(values: flags.FlagValues, _: list[str]) -> None:
    plan = _planned(_profile(values), values)
    write(flag_value(values, "out"), plan.to_json() + "\n")
    _plot(values, [(plan.strategy, plan)])


def _simulate(values: flags.FlagValues, _: list[str]) -> None:
    scaling = _profile(values)
    if is_plan_passed(values):
        plan = reschedule(scaling, read_flag(values, "plan", BurstPlan.from_json))
    else:
        plan = _planned(scaling, values)
    row = _row(plan.strategy, plan)
    if flag_value(values, "background_seconds") is not None:
        job = BackgroundJob(
            tuple(_numbers("background_seconds", flag_value(values, "background_seconds"))),
            flag_value(values, "background_batch"),
        )
        how = Multiplexing(
            max_outstanding=_or_none(values, "max_outstanding"),
            operators_per_graph=_or_none(values, "operators_per_graph"),
            priorities=flag_value(values, "priorities"),
            max_slowdown=_or_none(values, "max_slowdown"),
        )
        found = simulate_multiplexing(plan, job, how)
        row |= {
            "foreground_slowdown": found.foreground_slowdown,
            "background_samples_per_second": found.background_iterations * job.batch,
            "background_paused_spans": len(found.paused),
        }
    if flag_value(values, "json"):
        print_json(row)
    else:
        for name, value in row.items():
            print(*_named_value(name, value))
    _plot(values, [(plan.strategy, plan)])


def _compare(values: flags.FlagValues, _: list[str]) -> None:
    scaling = _profile(values)
    strategies = {name: kind(**passed_arguments(values, kind)) for name, kind in BY_NAME.items()}
    limits = _numbers("max_amplification", flag_value(values, "max_amplification"))
    rows: list[dict[str, Any]] = []
    pictures = []
    for compared in compare(scaling, strategies, limits):
        if compared.plan is None:
            rows.append({"plan": compared.name, "problem": compared.problem})
            continue
        rows.append(_row(compared.name, compared.plan))
        # Plot fixed numbers of devices only for the whole cluster.
        if compared.num_devices in (None, scaling.device_counts[-1]):
            pictures.append((compared.name, compared.plan))
    least = strong_scaling_limit(scaling)
    if flag_value(values, "json"):
        print_json({"plans": rows, "strong_scaling_limit_seconds": least})
    else:
        print(f"{'plan':<24}{'iteration':>14}{'device':>14}{'amplification':>15}{'idle':>8}")
        for row in rows:
            if "problem" in row:
                print(f"{row['plan']:<24}{row['problem']}")
                continue
            amplified = row["largest_amplification"]
            print(
                f"{row['plan']:<24}{formatting.time(row['iteration_seconds']):>14}"
                f"{formatting.time(row['device_seconds']):>14}"
                f"{'none' if amplified is None else f'{amplified:.3f}':>15}"
                f"{formatting.percent(row['idle_share']):>8}"
            )
        print(f"no plan is below {formatting.time(least)}")
    _plot(values, pictures)


COMMANDS = {
    "plan": Command("give each layer its number of devices", _define_plan, _plan),
    "simulate": Command(
        "what a plan takes, and what a background job gets meanwhile", _define_simulate, _simulate
    ),
    "compare": Command(
        "all strategies in one table, at every scale or under each limit",
        _define_compare,
        _compare,
    ),
}


def _profile(values: flags.FlagValues) -> ScalingProfile:
    return read_flag(values, "profile", ScalingProfile.from_json)


def _planned(scaling: ScalingProfile, values: flags.FlagValues) -> BurstPlan:
    return make_burst_plan(scaling, named_strategy(values, BY_NAME))


def _numbers(field: str, items: list[str]) -> list[float]:
    try:
        return [float(item) for item in items]
    except ValueError:
        raise ValueError(f"{field} must be numbers separated by commas, got {items}") from None


def _or_none(values: flags.FlagValues, name: str) -> Any:
    """Return a flag's value, or None for 0."""
    value = flag_value(values, name)
    return None if value == 0 else value


def _row(title: str, plan: BurstPlan) -> dict[str, Any]:
    largest = max(plan.amplification)
    total = plan.device_counts[-1] * plan.iteration_seconds
    return {
        "plan": title,
        "iteration_seconds": plan.iteration_seconds,
        "device_seconds": plan.device_seconds,
        "largest_amplification": None if largest == float("inf") else largest,
        "idle_share": sum(plan.idle_seconds) / total if total else 0.0,
        "devices": _counts(plan),
        "notes": list(plan.notes),
    }


def _named_value(name: str, value: Any) -> tuple[str, str]:
    """Format a field of one plan as a table line."""
    if name.endswith("_seconds"):
        name, text = name.removesuffix("_seconds"), formatting.time(value)
    elif name.endswith("_share"):
        text = formatting.percent(value)
    else:
        text = f"{value:.4g}" if isinstance(value, float) else f"{value}"
    return f"{name.replace('_', ' '):<30}", text


def _counts(plan: BurstPlan) -> dict[str, int]:
    """Return the number of layers that run on each number of devices."""
    return {str(count): plan.num_devices.count(count) for count in sorted(set(plan.num_devices))}


def _plot(values: flags.FlagValues, plans: list[tuple[str, BurstPlan]]) -> None:
    if flag_value(values, "plot"):
        from tf_libra.model_parallel.simulation.plots import plot_burst

        plot_burst(plans, flag_value(values, "plot"))
