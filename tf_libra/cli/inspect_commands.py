"""Commands that inspect runs: profile, timeline, report."""

import json
import sys
from pathlib import Path

from absl import flags

from tf_libra.cli.command import Command, flag_value, read_flag, write
from tf_libra.cost_model import cost_model_from_json
from tf_libra.internal import formatting


def _define_profile(values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "out", None, "output file of the profile; stdout by default", flag_values=values
    )
    flags.DEFINE_string(
        "cost",
        None,
        "JSON file of a cost model, to remove the slowdown by overlapped all-reduces",
        flag_values=values,
    )


def _profile(values: flags.FlagValues, rest: list[str]) -> None:
    from tf_libra.profiling.profile_from_trace import profile_of_trace
    from tf_libra.profiling.xplane import find_trace, read_trace

    path = find_trace(Path(rest[0]))
    cost = None
    if flag_value(values, "cost") is not None:
        cost = read_flag(values, "cost", cost_model_from_json, in_folder="cost_model.json")
    trace = read_trace(path)
    try:
        found = profile_of_trace(trace, cost)
    except ValueError as error:
        raise ValueError(f"{str(path)!r}: {error}") from None
    profile = found.measured.profile
    write(flag_value(values, "out"), profile.to_json() + "\n")
    lines = [
        f"{str(path)!r}: {len(profile.tensors)} tensors,"
        f" {formatting.size(int(profile.num_bytes.sum()))},"
        f" {formatting.time(float(profile.compute_seconds.sum()))} of backward computation, median"
        f" of {found.measured.num_steps} step(s)"
    ]
    if found.measured.inferred:
        lines.append(
            f"the trace lacks the ops of {len(found.measured.inferred)} tensor(s);"
            " they have the times of their neighbours"
        )
    if found.overlapped > 0 and cost is None:
        lines.append(
            f"all-reduces overlapped {formatting.percent(found.overlapped)} of the computation and"
            " slowed it down; name the cost model (--cost) to remove the slowdown, or trace a run"
            " under strategy syneasgd"
        )
    lines += [f"skipped {count} step(s): {reason}" for reason, count in found.problems.items()]
    print("\n".join(lines), file=sys.stderr)


def _define_timeline(values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "out", None, "output file of the trace; stdout by default", flag_values=values
    )
    flags.DEFINE_string(
        "run",
        None,
        "run to write if LOGDIR has several, as a path from LOGDIR; . is LOGDIR itself",
        flag_values=values,
    )


def _timeline(values: flags.FlagValues, rest: list[str]) -> None:
    from tf_libra.reporting.report.chrome_trace import chrome_trace, read_run

    folder = Path(rest[0])
    run = read_run(folder, flag_value(values, "run"))
    try:
        trace = chrome_trace(run)
    except ValueError as error:
        raise ValueError(f"{str(folder)!r}: {error}") from None
    write(flag_value(values, "out"), json.dumps(trace) + "\n")
    for problem in run.problems:
        print(f"skipped {problem}", file=sys.stderr)
    for rank, clock in trace["otherData"]["clocks"].items():
        print(f"clock of {rank}: {clock}", file=sys.stderr)


def _define_report(values: flags.FlagValues) -> None:
    flags.DEFINE_string("out", None, "output file of the report, one HTML file", flag_values=values)
    for kind in ("png", "svg"):
        flags.DEFINE_string(
            kind,
            None,
            f"output folder of {kind.upper()} pictures of each run's last plan",
            flag_values=values,
        )


def _report(values: flags.FlagValues, rest: list[str]) -> None:
    from tf_libra.reporting.report.figures import draw_figures
    from tf_libra.reporting.report.html_report import report_page
    from tf_libra.reporting.report.logdir_source import collect_answers, describe_problems

    folder = Path(rest[0])
    if not any(values[name].value for name in ("out", "png", "svg")):
        raise ValueError("an output must be given: --out report.html, --png FOLDER or --svg FOLDER")
    answers = collect_answers(folder)
    problems = describe_problems(answers)
    try:
        if values["out"].value:
            title = f"TF-Libra: {folder.resolve().name}"
            Path(values["out"].value).write_text(report_page(title, answers))
        for kind in ("png", "svg"):
            pictures = values[kind].value
            if pictures:
                skipped = draw_figures(answers, Path(pictures), kind, folder.resolve().name)
                problems += [problem for problem in skipped if problem not in problems]
    except ValueError as error:
        raise ValueError(f"{str(folder)!r}: {error}") from None
    for problem in problems:
        print(f"skipped {problem}", file=sys.stderr)


COMMANDS: dict[str, Command] = {
    "profile": Command(
        "make a profile from a trace of TensorFlow's profiler, or from the newest below a folder",
        _define_profile,
        _profile,
        ("TRACE",),
    ),
    "timeline": Command(
        "export the steps of all ranks as a Chrome trace, for Perfetto",
        _define_timeline,
        _timeline,
        ("LOGDIR",),
    ),
    "report": Command(
        "export TensorBoard's Libra tab as one HTML file, or as pictures",
        _define_report,
        _report,
        ("LOGDIR",),
    ),
}
