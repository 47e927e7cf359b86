"""Text of at most 100 columns about what is known of a training function."""

import statistics
import textwrap
from collections.abc import Sequence

import numpy as np

from tf_libra.autotune import Phase, TuningResult
from tf_libra.autotune.interleaved_trials import Race
from tf_libra.autotune.trial_comparison import against_one_all_reduce, describe_plan, why_another
from tf_libra.backends import backend, nccl_tuner
from tf_libra.internal import formatting
from tf_libra.planning.explain import explain
from tf_libra.profiling.overlap_samples import MeasuredTimeline
from tf_libra.reporting.run_history import RunSnapshot
from tf_libra.specs.plan import Plan

WIDTH = 100


def describe(facts: RunSnapshot) -> str:
    """The whole story so far: what was measured, the plan, and then what is predicted of it."""
    lines = [f"phase: {facts.phase.value}"]
    conclusion = facts.conclusion
    if conclusion is not None:
        lines += _wrapped(why_another_plan(facts) or "")
    lines += [part for line in times(facts) for part in _wrapped(line)]
    if conclusion is not None:
        if conclusion.race is not None and conclusion.race.num_rounds:
            lines += ["", "measured, steps in turns:", race_table(conclusion.race)]
        lines += ["", "plan, counted from the start of backward:"]
        lines.append(plan_table(conclusion, facts.timelines))
        if conclusion.is_fitted:
            lines += ["", *fit_table(conclusion)]
        lines.append("")
        plan, profile, model = conclusion.plan, conclusion.profile, conclusion.cost_model
        if profile is not None and model is not None:
            plain = "what this model says:" if conclusion.is_fitted else "predicted:"
            caveat = conclusion.evidence.caveat
            try:
                told = str(explain(profile, plan, model, conclusion.evidence))
            except ValueError as problem:
                lines += _wrapped(f"the model says nothing of this plan: {problem}")
                lines += _noted(plan)
            else:
                lines += [f"predicted {caveat}:" if caveat else plain, told]
        else:
            lines += _noted(plan)
    for remark in facts.remarks:
        lines += _wrapped(f"note: {remark}")
    executes = "" if conclusion is None else backend.resolve(facts.engine).describe()
    if executes:
        lines += _wrapped(f"engine: {executes}")
    if nccl_tuner.in_use():
        lines += _wrapped(nccl_tuner.counters().describe())
    return "\n".join(lines)


def _noted(plan: Plan) -> list[str]:
    return [line for note in plan.notes for line in _wrapped(f"note: {note}")]


def why_another_plan(facts: RunSnapshot) -> str | None:
    """Returns why the plan is of another strategy than requested; None if it is not."""
    if facts.conclusion is None or not facts.asked or facts.conclusion.profile is None:
        return None
    plan, notes = facts.conclusion.plan, facts.conclusion.notes
    return why_another(facts.asked, plan.strategy, facts.conclusion.race, notes)


def summary_line(facts: RunSnapshot) -> str:
    """Summarizes the training in one line."""
    steps = sum(facts.num_steps.values())
    told = f"{facts.function}: {steps} step{'s' if steps > 1 else ''}"
    after = facts.median_step_seconds(Phase.RUN)
    if facts.conclusion is None and facts.phase is Phase.RUN:
        return f"{told}, with nothing to plan"
    if facts.conclusion is None:
        return f"{told}, which ended before a plan was in force (phase {facts.phase.value})"
    plan = facts.conclusion.plan
    groups = len(plan.groups)
    told += (
        f", {facts.num_steps.get(Phase.RUN, 0)} of them under a plan of {plan.strategy}"
        f" ({groups} group{'s' if groups > 1 else ''})"
    )
    if after is not None:
        told += f", {formatting.time(after)} each"
    compared = against_one_all_reduce(facts.conclusion.race)
    return told if compared is None else f"{told}; {compared.describe()}"


def _wrapped(text: str) -> list[str]:
    wrapper = textwrap.TextWrapper(
        WIDTH, subsequent_indent=" " * 5, break_long_words=False, break_on_hyphens=False
    )
    return [part for line in text.splitlines() for part in wrapper.wrap(line)]


def fit_line(conclusion: TuningResult) -> str:
    """The fitted formulas with their error."""
    assert conclusion.cost_model is not None and conclusion.median_error is not None
    model = conclusion.cost_model
    rates = ";\n     ".join(
        f"r={r}: computation x{1 / float(model.compute_rate(r)):.2f}"
        f" {formatting.rate(float(model.overlapped_rate(r)))} beside it,"
        f" {formatting.rate(float(model.exclusive_rate(r)))} alone"
        for r in sorted({sample.num_threads for sample in conclusion.samples})
    )
    held_out_error = conclusion.held_out_error
    held_out = (
        "no held-out steps"
        if held_out_error is None
        else f"held-out steps missed by {formatting.percent(held_out_error)} in the median"
    )
    return (
        f"{model.formula()};\n"
        f"     {rates};\n"
        f"     {len(conclusion.samples)} samples, median error of an all-reduce"
        f" {formatting.percent(conclusion.median_error)}; {held_out}"
    )


def fit_table(conclusion: TuningResult) -> list[str]:
    """The fitted model at the threads that were sampled, a row each, and its error."""
    assert conclusion.cost_model is not None and conclusion.median_error is not None
    model = conclusion.cost_model
    rows = [("threads", "computation", "overlapped", "alone")]
    rows += [
        (
            f"r={r}",
            f"x{1 / float(model.compute_rate(r)):.2f}",
            formatting.rate(float(model.overlapped_rate(r))),
            formatting.rate(float(model.exclusive_rate(r))),
        )
        for r in sorted({sample.num_threads for sample in conclusion.samples})
    ]
    held_out = (
        "it was not tested on steps it has not seen"
        if conclusion.held_out_error is None
        else "steps of plans it has not seen are missed by"
        f" {formatting.percent(conclusion.held_out_error)}"
    )
    return [
        "fitted model: slowdown of computation, and transmission rates:",
        _aligned(rows),
        *_wrapped(
            f"  startup {formatting.time(model.startup_seconds)} overlapped,"
            f" {formatting.time(model.exclusive_startup_seconds)} alone;"
            f" {len(conclusion.samples)} samples, an all-reduce is missed by"
            f" {formatting.percent(conclusion.median_error)} in the median; {held_out}"
        ),
    ]


def plan_table(conclusion: TuningResult, timelines: Sequence[MeasuredTimeline] = ()) -> str:
    """The plan as a table; measured times (medians) stand before predicted ones."""
    plan = conclusion.plan
    measured = _measured(timelines)
    columns = ("measured start", "end") if measured else ()
    rows: list[tuple[str, ...]] = [
        ("group", "tensors", "size", "threads", *columns, "predicted start", "end")
    ]
    timeline = conclusion.predicted(plan)
    for index, group in enumerate(plan.groups):
        predicted = ("-", "-")
        if timeline is not None:
            span = timeline.groups[index]
            predicted = (formatting.time(span.start_seconds), formatting.time(span.end_seconds))
        rows.append(
            (
                str(index),
                f"{group.stop - group.start} ({group.start}..{group.stop - 1})",
                formatting.size(plan.group_bytes[index]),
                str(group.num_threads),
                *(measured.get(index, ("-", "-")) if measured else ()),
                *predicted,
            )
        )
    return _aligned(rows)


def _measured(timelines: Sequence[MeasuredTimeline]) -> dict[int, tuple[str, str]]:
    """When groups started and ended, medians; of several parts, first and last."""
    starts: dict[int, list[float]] = {}
    ends: dict[int, list[float]] = {}
    for timeline in timelines:
        for group in {one.group for one in timeline.groups}:
            parts = [one for one in timeline.groups if one.group == group]
            starts.setdefault(group, []).append(min(one.start_seconds for one in parts))
            ends.setdefault(group, []).append(max(one.end_seconds for one in parts))
    return {
        group: (
            formatting.time(statistics.median(starts[group])),
            formatting.time(statistics.median(ends[group])),
        )
        for group in starts
    }


def _aligned(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )


def race_table(race: Race) -> str:
    """Returns a table of the plans run in turns, the active first, measured and predicted."""
    rows: list[tuple[str, ...]] = [
        ("plan", "step", "middle half", "against it", "predicted", "rounds")
    ]
    for one in race.contenders:
        spread = [float(value) for value in np.quantile(one.seconds or (0.0,), (0.25, 0.75))]
        lead = race.lead(one)
        if one is race.winner:
            verdict = "in force"
        elif lead is None:
            verdict = formatting.NONE
        else:
            verdict = "noise" if race.is_noise(one) else formatting.change(lead[0] - 1)
        rows.append(
            (
                describe_plan(one),
                formatting.time(one.median_seconds),
                f"{formatting.time(spread[0])} to {formatting.time(spread[1])}"
                if one.seconds
                else "-",
                verdict,
                formatting.time(one.predicted_seconds),
                str(len(one.seconds)),
            )
        )
    return _aligned(rows)


def times(facts: RunSnapshot) -> list[str]:
    """Measured steps and backward time; what is predicted of it comes after."""
    lines = []
    seconds = facts.step_seconds.get(Phase.RUN)
    if seconds:
        low, middle, high = (float(one) for one in np.quantile(seconds, (0.25, 0.5, 0.75)))
        lines.append(
            f"step: measured {formatting.time(middle)} (middle half {formatting.time(low)} to"
            f" {formatting.time(high)}, {len(seconds)} steps under the plan)"
        )
    conclusion = facts.conclusion
    if conclusion is not None:
        race = conclusion.race
        compared = against_one_all_reduce(race)
        is_raced = race is not None and race.num_rounds > 0
        if compared is not None:
            lines.append(f"step, in turns: {compared.describe()}")
        elif seconds and len(conclusion.plan.groups) > 1 and not is_raced:
            lines.append("nothing was run in turns with the plan, so it is not compared")
    measured = facts.median_backward_seconds()
    if conclusion is not None and measured is not None:
        predicted = conclusion.plan.predicted_seconds
        told = f"backward: measured {formatting.time(measured)}"
        if predicted is not None:
            told += (
                f", predicted {formatting.time(predicted)}"
                f" ({formatting.change(predicted / measured - 1)})"
            )
        lines.append(told)
    return lines
