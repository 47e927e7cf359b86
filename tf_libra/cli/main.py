"""The `tf-libra` command: plan, simulate, compare, explain, run, profile, timeline, report.

Planning reads and writes JSON files and needs neither TensorFlow nor Horovod.
"""

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from tf_libra import checks, strategies
from tf_libra.cost_model import CostModel, cost_model_from_json
from tf_libra.model.plan import Plan
from tf_libra.model.profile import BackwardProfile
from tf_libra.planning import explain, make_plan
from tf_libra.planning.compare import IDEAL, compare, every_strategy, ideal
from tf_libra.planning.strategy import known_arguments
from tf_libra.report import commands as report
from tf_libra.simulation import Timeline, simulate

_USAGE = """usage: tf-libra COMMAND [flags]

commands:
  plan      make a plan for a profile under a cost model
  simulate  predict backward's time, over numbers of workers
  compare   all strategies in one table
  explain   why a plan is as it is
  run       start a training job on several ranks
  profile   read a profile from a trace of TensorFlow's profiler
  timeline  write what all ranks did as a trace that Perfetto opens
  report    write what TensorBoard's Libra tab shows as one HTML file, or as pictures
  burst     plan, simulate and compare burst parallelism
  pipeline  plan, simulate and compare pipelines

`tf-libra COMMAND --help` lists the flags of a command."""

# Flags that are arguments of strategies, by type.
_INTEGERS = {
    "num_threads": "communication threads r, for strategies with a fixed number",
    "max_groups": "K, the largest number of tensor groups (libra)",
    "chunks": "Z, the chunks that backward computation is divided into (libra, libra-m)",
    "chunks_per_group": "Z is at least this times K - 1 (libra-m)",
    "min_elements": "groups with fewer elements take in the next tensor (mg-wfbp, libra-m)",
    "buffer_bytes": "fusion buffer (horovod-fusion)",
}
_FLOATS = {
    "cycle_seconds": "cycle time (horovod-fusion)",
    "contention": "gamma, the slowdown of two all-reduces at once (asc-wfbp)",
}
_TEXTS = {"rule": "published-code or equation-40 (asc-wfbp)"}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status: 0, 1 on bad input, 2 on bad usage.

    Commands that read what a run has written return 2 on bad input, too.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = arguments[0] if arguments else "--help"
    if name in ("--help", "-h", "help"):
        print(_USAGE)
        return 0 if arguments else 2
    if name == "run":
        from tf_libra.cli.run import main as run

        return int(run(arguments[1:]) or 0)
    if name == "burst":
        from tf_libra.cli.burst import main as burst

        return burst(arguments[1:])
    if name == "pipeline":
        from tf_libra.cli.pipeline import main as pipeline

        return pipeline(arguments[1:])
    if name not in _COMMANDS:
        print(f"tf-libra: no command {name!r}\n{_USAGE}", file=sys.stderr)
        return 2
    define, command = _COMMANDS[name]
    values = flags.FlagValues()
    flags.DEFINE_bool("help", False, "show this", short_name="h", flag_values=values)
    define(values)
    try:
        rest = values([f"tf-libra {name}", *arguments[1:]])[1:]
        if values["help"].value:
            # Without the headings, which are the names of modules.
            lines = [line for line in values.get_help().splitlines() if line.startswith(" ")]
            print("\n".join([f"usage: tf-libra {name} [flags]", *lines]))
            return 0
        command(values, rest)
    except flags.Error as error:
        print(f"tf-libra {name}: {error}", file=sys.stderr)
        return 2
    except (ValueError, OSError, ImportError) as error:
        print(f"tf-libra {name}: {error}", file=sys.stderr)
        return 2 if name in report.COMMANDS else 1
    return 0


def _define_inputs(values: flags.FlagValues) -> None:
    flags.DEFINE_string("profile", None, "JSON file of the profile (required)", flag_values=values)
    flags.DEFINE_string("cost", None, "JSON file of the cost model (required)", flag_values=values)


def _define_strategy(values: flags.FlagValues, default: str | None) -> None:
    flags.DEFINE_string(
        "strategy", default, f"one of {', '.join(strategies.BY_NAME)}", flag_values=values
    )
    _define_arguments(values)
    flags.DEFINE_bool("exact", None, "the optimum, without chunks (libra)", flag_values=values)


def _define_arguments(values: flags.FlagValues) -> None:
    flags.DEFINE_list(
        "threads", None, "R, the allowed numbers of threads (libra, libra-m)", flag_values=values
    )
    for name, text in _INTEGERS.items():
        flags.DEFINE_integer(name, None, text, flag_values=values)
    for name, text in _FLOATS.items():
        flags.DEFINE_float(name, None, text, flag_values=values)
    for name, text in _TEXTS.items():
        flags.DEFINE_string(name, None, text, flag_values=values)


def _define_plan(values: flags.FlagValues) -> None:
    _define_inputs(values)
    _define_strategy(values, "libra")
    flags.DEFINE_integer("workers", None, "instead of the cost model's", flag_values=values)
    flags.DEFINE_string("out", None, "write the plan there, not to stdout", flag_values=values)
    flags.DEFINE_string("plot", None, "draw the timeline as this SVG file", flag_values=values)


def _define_simulate(values: flags.FlagValues) -> None:
    _define_inputs(values)
    flags.DEFINE_string("plan", None, "JSON file of a plan, kept for all", flag_values=values)
    _define_strategy(values, None)
    flags.DEFINE_list(
        "workers", None, "numbers of workers; the cost model's if none", flag_values=values
    )
    flags.DEFINE_bool("json", False, "print JSON instead of a table", flag_values=values)
    flags.DEFINE_string("plot", None, "draw the last timeline as this SVG file", flag_values=values)


def _define_compare(values: flags.FlagValues) -> None:
    _define_inputs(values)
    _define_arguments(values)
    flags.DEFINE_integer("workers", None, "instead of the cost model's", flag_values=values)
    flags.DEFINE_bool("exact", False, "also the optimum of libra", flag_values=values)
    flags.DEFINE_bool("json", False, "print JSON instead of a table", flag_values=values)


def _define_explain(values: flags.FlagValues) -> None:
    _define_inputs(values)
    flags.DEFINE_integer("workers", None, "instead of the cost model's", flag_values=values)
    flags.DEFINE_string("plot", None, "draw the timeline as this SVG file", flag_values=values)


def _plan(values: flags.FlagValues, rest: list[str]) -> None:
    _nothing_more(rest)
    profile, cost = _inputs(values)
    plan = make_plan(profile, cost, _strategy(values))
    if values["out"].value:
        Path(values["out"].value).write_text(plan.to_json() + "\n")
    else:
        print(plan.to_json())
    _plot(values, plan, simulate(profile, plan, cost))


def _simulate(values: flags.FlagValues, rest: list[str]) -> None:
    _nothing_more(rest)
    profile, cost = _inputs(values)
    if (values["plan"].value is None) == (values["strategy"].value is None):
        raise ValueError("plan or strategy must be given, and not both")
    strategy = None if values["strategy"].value is None else _strategy(values)
    fixed = None if strategy is not None else _read(values, "plan", Plan.from_json)
    workers = _integers("workers", values["workers"].value) or [cost.num_workers]
    rows, plan, timeline = [], fixed, None
    for count in workers:
        model = cost.with_workers(count)
        plan = fixed if strategy is None else make_plan(profile, model, strategy)
        assert plan is not None
        timeline = simulate(profile, plan, model)
        rows.append(_row(plan, timeline, {"workers": count}))
    _print_rows(rows, bool(values["json"].value))
    if plan is not None and timeline is not None:
        _plot(values, plan, timeline)


def _compare(values: flags.FlagValues, rest: list[str]) -> None:
    _nothing_more(rest)
    profile, cost = _inputs(values)
    chosen = every_strategy(_given(values))
    if values["exact"].value:
        chosen["libra, exact"] = strategies.Libra(
            **known_arguments(strategies.Libra, _given(values)), exact=True
        )
    threads = min(chosen[strategies.MgWfbp.name].allowed_threads)
    rows = []
    for one in (*compare(profile, cost, chosen), ideal(profile, cost, threads)):
        if one.plan is None or one.timeline is None:
            raise ValueError(f"{one.name}: {one.problem}")
        name = f"{one.name} (ideal)" if one.name == IDEAL else one.name
        rows.append(_row(one.plan, one.timeline, {"strategy": name}))
    _print_rows(rows, bool(values["json"].value))


def _explain(values: flags.FlagValues, rest: list[str]) -> None:
    if len(rest) != 1:
        raise ValueError(f"explain takes the JSON file of one plan, got {len(rest)} arguments")
    profile, cost = _inputs(values)
    plan = Plan.from_json(Path(rest[0]).read_text())
    explanation = explain(profile, plan, cost)
    print(explanation)
    _plot(values, plan, explanation.timeline)


_Command = tuple[Callable[[flags.FlagValues], None], Callable[[flags.FlagValues, list[str]], None]]
_COMMANDS: dict[str, _Command] = {
    "plan": (_define_plan, _plan),
    "simulate": (_define_simulate, _simulate),
    "compare": (_define_compare, _compare),
    "explain": (_define_explain, _explain),
    **report.COMMANDS,
}


def _inputs(values: flags.FlagValues) -> tuple[BackwardProfile, CostModel]:
    profile = _read(values, "profile", BackwardProfile.from_json)
    cost = _read(values, "cost", cost_model_from_json)
    workers = values["workers"].value
    if workers is not None and not isinstance(workers, list):
        cost = cost.with_workers(checks.integer("workers", workers, 1, checks.MAX_INT32))
    return profile, cost


def _read(values: flags.FlagValues, name: str, parse: Callable[[str], Any]) -> Any:
    path = values[name].value
    if path is None:
        raise ValueError(f"{name} must be given: --{name} FILE.json")
    try:
        return parse(Path(path).read_text())
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _given(values: flags.FlagValues) -> dict[str, Any]:
    """The arguments of strategies that were given as flags."""
    given: dict[str, Any] = {
        name: values[name].value
        for name in (*_INTEGERS, *_FLOATS, *_TEXTS)
        if values[name].value is not None
    }
    if values["threads"].value is not None:
        given["threads"] = tuple(_integers("threads", values["threads"].value))
    return given


def _strategy(values: flags.FlagValues) -> strategies.Strategy:
    name = str(values["strategy"].value)
    given = _given(values)
    if values["exact"].value is not None:
        given["exact"] = values["exact"].value
    kind = type(strategies.resolve(name))
    known = [field.name for field in dataclasses.fields(kind)]
    for argument in given:
        if argument not in known:
            raise ValueError(f"{argument} is no argument of {name}; it takes {', '.join(known)}")
    return kind(**given)


def _integers(field: str, items: list[str] | None) -> list[int]:
    try:
        numbers = [int(item) for item in items or []]
    except ValueError:
        raise ValueError(f"{field} must be integers separated by commas, got {items}") from None
    return [checks.integer(field, number, 1, checks.MAX_INT32) for number in numbers]


def _nothing_more(rest: list[str]) -> None:
    if rest:
        raise ValueError(f"no arguments are taken beside the flags, got {' '.join(rest)}")


def _row(plan: Plan, timeline: Timeline, first: dict[str, Any]) -> dict[str, Any]:
    threads = sorted({group.num_threads for group in plan.groups})
    return first | {
        "backward_seconds": timeline.backward_seconds,
        "step_seconds": timeline.step_seconds,
        "computation_end_seconds": timeline.computation_end_seconds,
        "residual_communication_seconds": sum(
            stage.residual_communication_seconds for stage in timeline.stages
        ),
        "groups": len(plan.groups),
        "threads": threads,
    }


def _print_rows(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    key = next(iter(rows[0]))
    print(
        f"{key:<16}{'backward':>14}{'with updates':>14}{'computation':>14}{'residual':>14}"
        f"{'groups':>8}  threads"
    )
    for row in rows:
        times = "".join(
            f"{1e3 * row[name]:>11.3f} ms"
            for name in (
                "backward_seconds",
                "step_seconds",
                "computation_end_seconds",
                "residual_communication_seconds",
            )
        )
        threads = ",".join(map(str, row["threads"]))
        print(f"{row[key]!s:<16}{times}{row['groups']:>8}  {threads}")


def _plot(values: flags.FlagValues, plan: Plan, timeline: Timeline) -> None:
    if values["plot"].value:
        from tf_libra.simulation.plot import plot_timeline

        plot_timeline(plan, timeline, values["plot"].value)
