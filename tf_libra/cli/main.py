"""The `tf-libra` program: dispatch, and commands that plan data-parallel training.

Planning reads and writes JSON files and needs neither TensorFlow nor Horovod.
"""

import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags

from tf_libra.cli import inspect_commands
from tf_libra.cli.command import (
    BAD,
    FAILED,
    FAMILIES,
    Command,
    Family,
    define_plot,
    flag_value,
    integers,
    one_line,
    print_json,
    read,
    read_flag,
    run_command,
    usage,
    version,
    write,
)
from tf_libra.cli.family_flags import define_families, read_families, requested_factors
from tf_libra.cli.step_table import one_worker_row, plan_row, print_rows, with_rest
from tf_libra.cli.strategy_flags import (
    define_arguments,
    define_strategy,
    is_plan_passed,
    named_strategy,
    passed_arguments,
)
from tf_libra.cost_model import CostModel, Evidence, cost_model_from_json, evidence_from_json
from tf_libra.internal import validation
from tf_libra.planning import data_parallel as strategies
from tf_libra.planning import explain, make_plan
from tf_libra.planning.arguments import arguments_of
from tf_libra.planning.compare import IDEAL, compare, compared_kinds, ideal
from tf_libra.planning.family_comparison import FamilyComparison
from tf_libra.reporting.families import describe_families
from tf_libra.runtime.family_prediction import predict_elsewhere
from tf_libra.simulation import Timeline, simulate
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.plan import Plan


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status, as `tf_libra.cli.command` has it."""
    status: int | None = None
    try:
        status = _main(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return status
    except OSError as error:
        # The reader of stdout has closed it, as `head` does, or stdout is on a full disk.
        if not status and not isinstance(error, BrokenPipeError):
            print(f"tf-libra: {one_line(error)}", file=sys.stderr)
        # Otherwise the rest of stdout fails again at the end of the process.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return status or FAILED


def _main(arguments: list[str]) -> int:
    name = arguments[0] if arguments else ""
    if name == "--version":
        print(f"tf-libra {version()}")
        return 0
    if name in FAMILIES:
        return FAMILIES[name].main(arguments[1:])
    if name in COMMANDS:
        return run_command(f"tf-libra {name}", COMMANDS[name], arguments[1:])
    summaries = {title: command.summary for title, command in COMMANDS.items()}
    summaries |= {title: family.summary for title, family in FAMILIES.items()}
    text = usage("tf-libra", summaries) + "\n`tf-libra --version` prints the version."
    if name in ("--help", "-h", "help"):
        print(text)
        return 0
    print(f"tf-libra: no command {name!r}\n{text}" if name else text, file=sys.stderr)
    return BAD


def _run(arguments: list[str]) -> int:
    from tf_libra.cli import run

    return run.main(arguments)


FAMILIES.add("run", Family("start a training job on several ranks", _run))


def _define_inputs(values: flags.FlagValues, default: str = "required") -> None:
    flags.DEFINE_string(
        "profile",
        None,
        f"JSON file of the profile, or a log directory with one ({default})",
        flag_values=values,
    )
    flags.DEFINE_string(
        "cost",
        None,
        f"JSON file of the cost model, or a log directory with one ({default})",
        flag_values=values,
    )


def _define_gathers(values: flags.FlagValues) -> None:
    flags.DEFINE_bool(
        "gathers",
        False,
        "plan reduce-scatters, and gathers under the next forward pass (docs/sharded_updates.md)",
        flag_values=values,
    )


def _define_plan(values: flags.FlagValues) -> None:
    _define_inputs(values)
    _define_gathers(values)
    define_strategy(values, strategies.BY_NAME, "auto")
    flags.DEFINE_integer(
        "workers", None, "number of workers; the cost model's by default", flag_values=values
    )
    flags.DEFINE_string(
        "out", None, "output file of the plan; stdout by default", flag_values=values
    )
    define_plot(values)
    define_arguments(values, strategies.BY_NAME)


def _define_simulate(values: flags.FlagValues) -> None:
    _define_inputs(values)
    _define_gathers(values)
    flags.DEFINE_string(
        "plan", None, "JSON file of a plan, for every number of workers", flag_values=values
    )
    define_strategy(values, strategies.BY_NAME, None)
    flags.DEFINE_list(
        "workers", None, "numbers of workers; the cost model's by default", flag_values=values
    )
    flags.DEFINE_bool("json", False, "print JSON instead of a table", flag_values=values)
    define_plot(values, "the last timeline")
    define_arguments(values, strategies.BY_NAME)


def _define_compare(values: flags.FlagValues) -> None:
    _define_inputs(values)
    _define_gathers(values)
    flags.DEFINE_integer(
        "workers", None, "number of workers; the cost model's by default", flag_values=values
    )
    exact = [name for name, kind in strategies.BY_NAME.items() if _has_optimum(kind)]
    flags.DEFINE_bool("exact", False, f"also the optimum of {', '.join(exact)}", flag_values=values)
    for name, what in (("link_factor", "links as fast"), ("batch_factor", "examples per step")):
        flags.DEFINE_float(name, 1.0, f"this many times {what}", 1e-3, 1e3, flag_values=values)
    define_families(values)
    flags.DEFINE_bool("json", False, "print JSON instead of a table", flag_values=values)
    define_arguments(values, compared_kinds(), without=("exact",))


def _define_explain(values: flags.FlagValues) -> None:
    _define_inputs(values, "LOGDIR's by default")
    flags.DEFINE_integer(
        "workers", None, "number of workers; the cost model's by default", flag_values=values
    )
    define_plot(values)


def _plan(values: flags.FlagValues, _: list[str]) -> None:
    profile, cost, evidence = _inputs(values)
    strategy = named_strategy(values, strategies.BY_NAME)
    plan = make_plan(profile, cost, strategy, gathers=bool(values["gathers"].value))
    write(flag_value(values, "out"), plan.to_json() + "\n")
    _print_evidence(evidence, [plan])
    _plot(values, plan, simulate(profile, plan, cost))


def _simulate(values: flags.FlagValues, _: list[str]) -> None:
    profile, cost, evidence = _inputs(values)
    strategy = None if is_plan_passed(values) else named_strategy(values, strategies.BY_NAME)
    fixed = None
    if strategy is None:
        if values["gathers"].value:
            raise ValueError("gathers must be left out with plan, which has its own, got True")
        fixed = read_flag(values, "plan", Plan.from_json, in_folder="plan.json")
    workers = integers("workers", values["workers"].value) or [cost.num_workers]
    rows, plan, timeline = [], fixed, None
    plans = []
    for count in workers:
        model = cost.with_workers(count)
        plan = fixed
        if strategy is not None:
            plan = make_plan(profile, model, strategy, gathers=bool(values["gathers"].value))
        assert plan is not None
        timeline = simulate(profile, plan, model)
        rows.append(plan_row(plan, timeline, {"workers": count}))
        plans.append(plan)
    print_rows(rows, bool(values["json"].value))
    _print_evidence(evidence, plans)
    if plan is not None and timeline is not None:
        _plot(values, plan, timeline)


def _compare(values: flags.FlagValues, _: list[str]) -> None:
    profile, cost, evidence = _inputs(values)
    families = read_families(values)
    links, examples = requested_factors(values, families, cost)
    profile, cost = profile.with_batch(examples), cost.with_link_rate(links)
    chosen: dict[str, strategies.Strategy] = {
        name: kind(**passed_arguments(values, kind)) for name, kind in compared_kinds().items()
    }
    if values["exact"].value:
        chosen |= {
            f"{name}, exact": dataclasses.replace(strategy, exact=True)
            for name, strategy in chosen.items()
            if _has_optimum(type(strategy))
        }
    threads = min(chosen[strategies.MgWfbp.name].allowed_threads)
    rows, plans = [], []
    found = compare(profile, cost, chosen, bool(values["gathers"].value))
    for compared in (*found, ideal(profile, cost, threads)):
        if compared.plan is None or compared.timeline is None:
            raise ValueError(f"{compared.name}: {compared.problem}")
        name = f"{compared.name} (ideal)" if compared.name == IDEAL else compared.name
        row = plan_row(compared.plan, compared.timeline, {"strategy": name})
        rows.append(with_rest(row, profile.rest_seconds))
        plans.append(compared.plan)
    if profile.rest_seconds is not None:
        rows.append(one_worker_row(profile, profile.rest_seconds, cost.num_workers))
    if cost.num_workers == 1:
        families = None
    elif families and (links, examples, cost.num_workers) != (1, 1, families.num_workers):
        families = _predict_elsewhere(families, profile, cost, examples, rows)
    as_json = bool(values["json"].value)
    if families is not None and as_json:
        document = dataclasses.replace(families, layers=None, batch=0).to_document()
        print_json({"families": document, "strategies": rows})
    else:
        if families is not None:
            print("\n".join([*describe_families(families), ""]))
        print_rows(rows, as_json)
    _print_evidence(evidence, plans)
    if profile.rest_seconds is None:
        print(
            "note: one worker is not compared, because the profile has no rest_seconds, the time"
            " outside backward and the updates",
            file=sys.stderr,
        )


def _predict_elsewhere(
    families: FamilyComparison,
    profile: BackwardProfile,
    cost: CostModel,
    examples: float,
    rows: list[dict[str, Any]],
) -> FamilyComparison:
    """Returns families as predicted for other links, batches or numbers of workers.

    Raises:
        ValueError: the profile lacks the time outside backward.
    """
    rest = profile.rest_seconds
    if rest is None:
        raise ValueError("profile needs rest_seconds to predict families, got none")
    several = {row["strategy"]: row["whole_step_seconds"] for row in rows}
    alone = several.pop("one worker")
    # "auto" runs no plan with gathers, and no ideal one.
    gathering = {row["strategy"] for row in rows if "forward_delay_seconds" in row}
    step = min(
        seconds
        for name, seconds in several.items()
        if name not in gathering and not name.startswith(IDEAL)
    )
    return predict_elsewhere(families, cost, examples, step, alone)


def _explain(values: flags.FlagValues, rest: list[str]) -> None:
    path = Path(rest[0])
    if path.is_dir():
        for name in ("profile", "cost"):
            if values[name].value is None:
                values[name].value = str(path)
        path /= "plan.json"
    profile, cost, evidence = _inputs(values)
    plan = read(path, Plan.from_json)
    explanation = explain(profile, plan, cost, evidence)
    if evidence is not None and evidence.caveat:
        print(f"predicted {evidence.caveat}:")
    print(explanation)
    _print_evidence(evidence, [plan])
    _plot(values, plan, explanation.timeline)


COMMANDS: dict[str, Command] = {
    "plan": Command("make a plan for a profile under a cost model", _define_plan, _plan),
    "simulate": Command(
        "predict backward time for numbers of workers", _define_simulate, _simulate
    ),
    "compare": Command("compare all strategies in one table", _define_compare, _compare),
    "explain": Command(
        "explain the groups of a plan", _define_explain, _explain, ("PLAN.json|LOGDIR",)
    ),
    **inspect_commands.COMMANDS,
}


def _inputs(values: flags.FlagValues) -> tuple[BackwardProfile, CostModel, Evidence | None]:
    profile = read_flag(values, "profile", BackwardProfile.from_json, in_folder="profile.json")
    cost = read_flag(values, "cost", cost_model_from_json, in_folder="cost_model.json")
    evidence = read_flag(values, "cost", evidence_from_json, in_folder="cost_model.json")
    workers = values["workers"].value
    if workers is not None and not isinstance(workers, list):
        cost = cost.with_workers(validation.integer("workers", workers, 1, validation.MAX_INT32))
    return profile, cost, evidence


def _print_evidence(evidence: Evidence | None, plans: Sequence[Plan]) -> None:
    """Prints the samples and errors of the cost model to stderr, if its file has them."""
    if evidence is None:
        return
    print(f"note: {evidence.describe()}", file=sys.stderr)
    beyond = evidence.beyond({group.num_threads for plan in plans for group in plan.groups})
    if beyond:
        print(
            f"note: predictions for r = {', '.join(map(str, beyond))} are extrapolated; samples"
            f" have r = {evidence.threads[0]} to {evidence.threads[-1]}",
            file=sys.stderr,
        )


def _has_optimum(kind: type[strategies.Strategy]) -> bool:
    """Returns True for a strategy with an argument `exact`."""
    return any(argument.name == "exact" for argument in arguments_of(kind))


def _plot(values: flags.FlagValues, plan: Plan, timeline: Timeline) -> None:
    if values["plot"].value:
        from tf_libra.simulation.timeline_plot import plot_timeline

        plot_timeline(plan, timeline, values["plot"].value)
