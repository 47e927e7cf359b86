"""`tf-libra burst`: plan bursts, simulate them beside a background job, compare."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from tf_libra.cli.family import carry_out
from tf_libra.model.burst import BurstPlan
from tf_libra.model.scaling import ScalingProfile
from tf_libra.planning.burst import BY_NAME, data_parallel, make_burst_plan, strong_scaling_limit
from tf_libra.simulation import (
    BackgroundJob,
    Multiplexing,
    simulate_burst,
    simulate_multiplexing,
)

_USAGE = """usage: tf-libra burst COMMAND [flags]

commands:
  plan      give each layer its number of devices
  simulate  what a plan takes, and what a background job gets beside it
  compare   data parallelism at every scale and bursts under several limits

`tf-libra burst COMMAND --help` lists the flags of a command."""


def main(arguments: Sequence[str]) -> int:
    """Runs `tf-libra burst` and returns its exit status: 0, 1 on bad input, 2 on bad usage."""
    name = arguments[0] if arguments else "--help"
    if name in ("--help", "-h", "help"):
        print(_USAGE)
        return 0 if arguments else 2
    if name not in _COMMANDS:
        print(f"tf-libra burst: no command {name!r}\n{_USAGE}", file=sys.stderr)
        return 2
    define, command = _COMMANDS[name]
    values = flags.FlagValues()
    flags.DEFINE_string(
        "profile", None, "JSON file of the scaling profile (required)", flag_values=values
    )
    flags.DEFINE_string("plot", None, "draw devices and gaps as this SVG file", flag_values=values)
    define(values)
    return carry_out(f"tf-libra burst {name}", values, arguments[1:], command)


def _define_strategy(values: flags.FlagValues, default: str | None) -> None:
    flags.DEFINE_string("strategy", default, f"one of {', '.join(BY_NAME)}", flag_values=values)
    flags.DEFINE_float(
        "max_amplification", None, "no layer's may be larger; no limit if none", flag_values=values
    )
    flags.DEFINE_integer("num_devices", None, "of every layer (data-parallel)", flag_values=values)


def _define_plan(values: flags.FlagValues) -> None:
    _define_strategy(values, "deeppool")
    flags.DEFINE_string("out", None, "write the plan there, not to stdout", flag_values=values)


def _define_simulate(values: flags.FlagValues) -> None:
    flags.DEFINE_string("plan", None, "JSON file of a plan", flag_values=values)
    _define_strategy(values, None)
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
        "max_slowdown", 1.5, "pause beside what suffers more; 0: never", flag_values=values
    )
    flags.DEFINE_bool("json", False, "print JSON instead of a table", flag_values=values)


def _define_compare(values: flags.FlagValues) -> None:
    flags.DEFINE_list(
        "max_amplification", ["1.5", "2", "4"], "limits of bursts", flag_values=values
    )
    flags.DEFINE_bool("json", False, "print JSON instead of a table", flag_values=values)


def _plan(values: flags.FlagValues) -> None:
    plan = _planned(_profile(values), values)
    if _given(values, "out"):
        Path(_given(values, "out")).write_text(plan.to_json() + "\n")
    else:
        print(plan.to_json())
    _plot(values, [(plan.strategy, plan)])


def _simulate(values: flags.FlagValues) -> None:
    scaling = _profile(values)
    if (_given(values, "plan") is None) == (_given(values, "strategy") is None):
        raise ValueError("plan or strategy must be given, and not both")
    if _given(values, "strategy") is None:
        plan = _read(_given(values, "plan"), BurstPlan.from_json)
    else:
        plan = _planned(scaling, values)
    seconds = max(span.stop_seconds for span in simulate_burst(scaling, plan))
    row = _row(plan.strategy, plan) | {"iteration_seconds": seconds}
    if _given(values, "background_seconds") is not None:
        if plan.profile_fingerprint != scaling.fingerprint:
            raise ValueError(
                "profile must be the plan's own beside a background job, whose times the plan "
                f"holds: {plan.profile_fingerprint:.12}, got {scaling.fingerprint:.12}"
            )
        job = BackgroundJob(
            tuple(_numbers("background_seconds", _given(values, "background_seconds"))),
            _given(values, "background_batch"),
        )
        how = Multiplexing(
            max_outstanding=_or_none(values, "max_outstanding"),
            operators_per_graph=_or_none(values, "operators_per_graph"),
            priorities=_given(values, "priorities"),
            max_slowdown=_or_none(values, "max_slowdown"),
        )
        found = simulate_multiplexing(plan, job, how)
        row |= {
            "foreground_slowdown": found.foreground_slowdown,
            "background_samples_per_second": found.background_iterations * job.batch,
            "background_paused_spans": len(found.paused),
        }
    if _given(values, "json"):
        print(json.dumps(row, indent=1))
    else:
        for name, value in row.items():
            print(f"{name:<30} {value:.6g}" if isinstance(value, float) else f"{name:<30} {value}")
    _plot(values, [(plan.strategy, plan)])


def _compare(values: flags.FlagValues) -> None:
    scaling = _profile(values)
    plans = [(f"data-parallel, {plan.num_devices[0]}", plan) for plan in data_parallel(scaling)]
    for limit in _numbers("max_amplification", _given(values, "max_amplification")):
        plan = make_burst_plan(scaling, max_amplification=limit)
        plans.append((f"deeppool, {limit:g}", plan))
    plans.append(("deeppool, no limit", make_burst_plan(scaling)))
    rows = [_row(title, plan) for title, plan in plans]
    least = strong_scaling_limit(scaling)
    if _given(values, "json"):
        print(json.dumps({"plans": rows, "strong_scaling_limit_seconds": least}, indent=1))
    else:
        print(f"{'plan':<24}{'iteration':>14}{'device':>14}{'amplification':>15}{'idle':>8}")
        for row in rows:
            amplified = row["largest_amplification"]
            print(
                f"{row['plan']:<24}{1e3 * row['iteration_seconds']:>11.3f} ms"
                f"{1e3 * row['device_seconds']:>11.3f} ms"
                f"{'none' if amplified is None else f'{amplified:.3f}':>15}"
                f"{row['idle_share']:>8.1%}"
            )
        print(f"no plan is below {1e3 * least:.3f} ms")
    # Every limit, and data parallelism on the whole cluster.
    _plot(values, plans[len(scaling.device_counts) - 1 :])


_COMMANDS: dict[
    str, tuple[Callable[[flags.FlagValues], None], Callable[[flags.FlagValues], None]]
] = {
    "plan": (_define_plan, _plan),
    "simulate": (_define_simulate, _simulate),
    "compare": (_define_compare, _compare),
}


def _given(values: flags.FlagValues, name: str) -> Any:
    return values[name].value


def _profile(values: flags.FlagValues) -> ScalingProfile:
    if _given(values, "profile") is None:
        raise ValueError("profile must be given: --profile FILE.json")
    return _read(_given(values, "profile"), ScalingProfile.from_json)


def _read(path: str, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(Path(path).read_text())
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _planned(scaling: ScalingProfile, values: flags.FlagValues) -> BurstPlan:
    return make_burst_plan(
        scaling,
        _given(values, "strategy"),
        max_amplification=_given(values, "max_amplification"),
        num_devices=_given(values, "num_devices"),
    )


def _numbers(field: str, items: list[str]) -> list[float]:
    try:
        return [float(item) for item in items]
    except ValueError:
        raise ValueError(f"{field} must be numbers separated by commas, got {items}") from None


def _or_none(values: flags.FlagValues, name: str) -> Any:
    """A flag's value, where 0 stands for none."""
    value = _given(values, name)
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


def _counts(plan: BurstPlan) -> dict[str, int]:
    """How many layers run on which number of devices."""
    return {str(count): plan.num_devices.count(count) for count in sorted(set(plan.num_devices))}


def _plot(values: flags.FlagValues, plans: list[tuple[str, BurstPlan]]) -> None:
    if _given(values, "plot"):
        from tf_libra.simulation.burst_plot import plot_burst

        plot_burst(plans, _given(values, "plot"))
