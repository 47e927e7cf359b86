"""Commands of `tf-libra` that read what runs have written: profile, timeline."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

from absl import flags

from tf_libra.cost_model import ContentionModel

Command = tuple[Callable[[flags.FlagValues], None], Callable[[flags.FlagValues, list[str]], None]]


def _define_profile(values: flags.FlagValues) -> None:
    flags.DEFINE_string("out", None, "write the profile there, not to stdout", flag_values=values)
    flags.DEFINE_string(
        "cost",
        None,
        "JSON file of a cost model, to take out what overlapped all-reduces slowed down",
        flag_values=values,
    )


def _profile(values: flags.FlagValues, rest: list[str]) -> None:
    from tf_libra.profiling.traced import profile_of_trace
    from tf_libra.profiling.xplane import find_trace, read_trace

    path = find_trace(_one(rest, "profile", "a trace of TensorFlow's profiler, or its folder"))
    cost = None
    if values["cost"].value is not None:
        cost = ContentionModel.from_json(_text(Path(values["cost"].value)))
    trace = read_trace(path)
    try:
        found = profile_of_trace(trace, cost)
    except ValueError as error:
        raise ValueError(f"{str(path)!r}: {error}") from None
    profile = found.measured.profile
    _write(values, profile.to_json() + "\n")
    lines = [
        f"{str(path)!r}: {len(profile.tensors)} tensors, {int(profile.num_bytes.sum()):,} bytes,"
        f" {profile.compute_seconds.sum() * 1e3:.3f} ms of backward computation in the median of"
        f" {found.measured.num_steps} step(s)"
    ]
    if found.measured.inferred:
        lines.append(
            f"{len(found.measured.inferred)} tensor(s) come from ops that the trace does not show;"
            " their times are those of their neighbours"
        )
    if found.overlapped > 0 and cost is None:
        lines.append(
            f"{found.overlapped:.0%} of it ran beside all-reduces, which slowed it down: give the"
            " cost model (--cost) to take that out, or trace a run under strategy syneasgd"
        )
    lines += [f"left out {count} step(s): {why}" for why, count in found.problems.items()]
    print("\n".join(lines), file=sys.stderr)


def _define_timeline(values: flags.FlagValues) -> None:
    flags.DEFINE_string("out", None, "write the trace there, not to stdout", flag_values=values)


def _timeline(values: flags.FlagValues, rest: list[str]) -> None:
    from tf_libra.report.run import read_run
    from tf_libra.report.timeline import chrome_trace

    folder = _one(rest, "timeline", "the log directory of a run")
    run = read_run(folder)
    try:
        trace = chrome_trace(run)
    except ValueError as error:
        raise ValueError(f"{str(folder)!r}: {error}") from None
    _write(values, json.dumps(trace) + "\n")
    for problem in run.problems:
        print(f"left out {problem}", file=sys.stderr)
    for rank, clock in trace["otherData"]["clocks"].items():
        print(f"clock of {rank}: {clock}", file=sys.stderr)


COMMANDS: dict[str, Command] = {
    "profile": (_define_profile, _profile),
    "timeline": (_define_timeline, _timeline),
}


def _one(rest: list[str], command: str, what: str) -> Path:
    if len(rest) != 1:
        raise ValueError(f"{command} takes {what}, got {len(rest)} arguments")
    return Path(rest[0])


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except UnicodeDecodeError:
        raise ValueError(f"{str(path)!r} is no text") from None


def _write(values: flags.FlagValues, text: str) -> None:
    if values["out"].value:
        Path(values["out"].value).write_text(text)
    else:
        print(text, end="")
