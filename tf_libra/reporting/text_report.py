"""Text report of a training function, of at most 100 columns."""

import statistics
import textwrap
from collections.abc import Sequence

import numpy as np

from tf_libra.autotune import Phase, TuningResult
from tf_libra.autotune.trial_comparison import (
    Candidate,
    Race,
    compare_with_one_all_reduce,
    explain_strategy_change,
    name_plan,
)
from tf_libra.backends import backend, nccl_environment, nccl_tuner
from tf_libra.internal import formatting
from tf_libra.planning.explain import explain
from tf_libra.profiling.overlap_samples import MeasuredTimeline
from tf_libra.reporting.run_history import RunSnapshot
from tf_libra.simulation import GroupSpan

# Names for readers, by the values of `PlanSource`.
ORIGIN_NAMES = {"made": "tuned", "kept": "cached", "given": "user-provided"}
# A rate by which the largest sample takes less than this share of the startup overhead is noise.
_MEASURABLE_SHARE = 0.01
_NO_SPAN = (formatting.NONE, formatting.NONE)


def describe(run: RunSnapshot) -> str:
    """Returns the whole report: measurements, the plan, and its prediction."""
    lines = [f"phase: {run.phase.value}"]
    conclusion = run.conclusion
    if conclusion is not None:
        measured = run.median_step_seconds(Phase.RUN)
        if compared := conclusion.compare_with_one_worker(measured):
            lines += _wrapped(f"one worker: {compared.describe()}")
        lines += _wrapped(why_another_plan(run) or "")
    lines += [part for line in times(run) for part in _wrapped(line)]
    if conclusion is not None:
        if conclusion.race is not None and conclusion.race.num_rounds:
            lines += ["", "interleaved trials:", race_table(conclusion.race)]
        lines += ["", "active plan, times from the start of backward:"]
        lines.append(plan_table(conclusion, run.timelines))
        if conclusion.is_fitted:
            lines += ["", *fit_table(conclusion)]
        lines += ["", *_prediction(conclusion)]
        if run.error_feedback and conclusion.plan.loss:
            lines += _wrapped(
                "note: error_feedback: what rounding loses is added to the next gradients"
            )
        if run.omitted_bytes:
            total = formatting.size(sum(conclusion.plan.num_bytes))
            lines += _wrapped(
                f"zero blocks: in a step this rank leaves out {formatting.size(run.omitted_bytes)}"
                f" of zeros of what it sends; gradients are {total}"
            )
    for remark in run.remarks:
        lines += _wrapped(f"note: {remark}")
    engine = "" if conclusion is None else backend.resolve(run.engine).describe()
    if engine:
        lines += _wrapped(f"engine: {engine}")
    if nccl_environment.in_use():
        lines += _wrapped(nccl_tuner.counters().describe())
    return "\n".join(lines)


def _prediction(conclusion: TuningResult) -> list[str]:
    """Returns the model's explanation of the plan, or the plan's notes without a prediction."""
    plan, profile, model = conclusion.plan, conclusion.whole_profile, conclusion.cost_model
    texts = (plan.loss, *plan.notes)
    notes = [line for note in texts if note for line in _wrapped(f"note: {note}")]
    if profile is None or model is None:
        return notes
    try:
        explanation = str(explain(profile, plan, model, conclusion.evidence))
    except ValueError as problem:
        return _wrapped(f"the model cannot predict this plan: {problem}") + notes
    title = "predicted by the fitted model:" if conclusion.is_fitted else "predicted:"
    caveat = conclusion.evidence.caveat
    return [f"predicted {caveat}:" if caveat else title, explanation]


def why_another_plan(run: RunSnapshot) -> str | None:
    """Returns why the plan's strategy differs from the requested one; None if it does not."""
    if run.conclusion is None or not run.requested or run.conclusion.profile is None:
        return None
    plan, notes = run.conclusion.plan, run.conclusion.notes
    return explain_strategy_change(run.requested, plan.strategy, run.conclusion.race, notes)


def summary_line(run: RunSnapshot) -> str:
    """Returns a summary of the training in one line."""
    steps = sum((*run.num_steps.values(), *run.other_steps.values()))
    text = f"{run.function}: {formatting.count(steps, 'step')}"
    if run.conclusion is None and run.phase is Phase.RUN:
        return f"{text}, nothing to plan"
    if run.conclusion is None:
        return f"{text}, ended before a plan was active (phase {run.phase.value})"
    plan = run.conclusion.plan
    text += (
        f", {run.num_steps.get(Phase.RUN, 0)} of them under a plan of {plan.strategy}"
        f" ({plan.describe_groups()})"
    )
    seconds = run.median_step_seconds(Phase.RUN)
    if seconds is not None:
        text += f", {formatting.time(seconds)} each"
    for strategy, count in run.other_steps.items():
        text += f", {count} under {strategy}"
    compared = compare_with_one_all_reduce(run.conclusion.race)
    return text if compared is None else f"{text}; {compared.describe()}"


def _wrapped(text: str) -> list[str]:
    wrapper = textwrap.TextWrapper(
        formatting.COLUMNS,
        subsequent_indent=" " * 5,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [part for line in text.splitlines() for part in wrapper.wrap(line)]


def fit_line(conclusion: TuningResult) -> str:
    """Returns the fitted formulas with their error."""
    assert conclusion.cost_model is not None and conclusion.median_error is not None
    model = conclusion.cost_model
    rates = ";\n     ".join(
        f"{threads}: computation {slowdown} {overlapped} overlapped, {exclusive} exclusive"
        for threads, slowdown, overlapped, exclusive in _fit_rows(conclusion)
    )
    return (
        f"{model.formula()};\n"
        f"     {rates};\n"
        f"     {len(conclusion.samples)} samples, median error of overlapped or exclusive"
        f" all-reduces {formatting.percent(conclusion.median_error)};"
        f" {_held_out_errors(conclusion)}"
    )


def _held_out_errors(conclusion: TuningResult) -> str:
    if conclusion.held_out_error is None:
        return "no held-out steps"
    text = f"median error of held-out steps {formatting.percent(conclusion.held_out_error)}"
    if conclusion.held_out_backward_error is None:
        return text
    return f"{text}, of their backward {formatting.percent(conclusion.held_out_backward_error)}"


def fit_table(conclusion: TuningResult) -> list[str]:
    """Returns a table of the fitted model by sampled thread count, and its error."""
    assert conclusion.cost_model is not None and conclusion.median_error is not None
    model = conclusion.cost_model
    rows = [("threads", "computation", "overlapped", "exclusive")]
    rows += _fit_rows(conclusion)
    return [
        "fitted model, slowdown of computation and transmission rates:",
        _aligned(rows),
        *_wrapped(
            f"  startup {formatting.time(model.startup_seconds)} overlapped,"
            f" {formatting.time(model.exclusive_startup_seconds)} exclusive,"
            f" waiting {formatting.time(model.waiting)};"
            f" {len(conclusion.samples)} samples, median error of overlapped or exclusive"
            " all-reduces"
            f" {formatting.percent(conclusion.median_error)}; {_held_out_errors(conclusion)}"
        ),
    ]


def _fit_rows(conclusion: TuningResult) -> list[tuple[str, str, str, str]]:
    """Returns threads, slowdown of computation, and both rates, by sampled thread count."""
    assert conclusion.cost_model is not None
    model = conclusion.cost_model
    largest = max((sample.num_bytes for sample in conclusion.samples), default=0)

    def text(rate: float, startup: float) -> str:
        is_noise = largest / rate < _MEASURABLE_SHARE * startup
        return "undetermined" if is_noise else formatting.rate(rate)

    return [
        (
            f"r={r}",
            f"x{1 / float(model.compute_rate(r)):.2f}",
            text(float(model.overlapped_rate(r)), model.startup_seconds),
            text(float(model.exclusive_rate(r)), model.exclusive_startup_seconds),
        )
        for r in sorted({sample.num_threads for sample in conclusion.samples})
    ]


def plan_table(conclusion: TuningResult, timelines: Sequence[MeasuredTimeline] = ()) -> str:
    """Returns the plan as a table with measured (median) and predicted times."""
    plan = conclusion.plan
    measured = _measured(timelines)
    columns = ("measured start", "end") if measured else ()
    rows: list[tuple[str, ...]] = [
        ("group", "tensors", "size", "threads", *columns, "predicted start", "end")
    ]
    timeline = conclusion.predicted(plan)
    for index, group in enumerate(plan.groups):
        rows.append(
            (
                str(index),
                f"{group.stop - group.start} ({group.start}..{group.stop - 1})",
                formatting.size(plan.group_bytes[index]),
                str(group.num_threads),
                *(measured.get(index, _NO_SPAN) if measured else ()),
                *(_NO_SPAN if timeline is None else _span_cells(timeline.groups[index])),
            )
        )
    for index, gather in enumerate(plan.gathers):
        rows.append(
            (
                f"gather {index}",
                f"{gather.stop - gather.start} ({gather.stop - 1}..{gather.start})",
                formatting.size(plan.gather_bytes[index]),
                str(gather.num_threads),
                *(_NO_SPAN if measured else ()),
                *(_NO_SPAN if timeline is None else _span_cells(timeline.gathers[index])),
            )
        )
    return _aligned(rows)


def _span_cells(span: GroupSpan) -> tuple[str, str]:
    return formatting.time(span.start_seconds), formatting.time(span.end_seconds)


def _measured(timelines: Sequence[MeasuredTimeline]) -> dict[int, tuple[str, str]]:
    """Returns median start and end by group; several all-reduces of a group count as one span."""
    starts: dict[int, list[float]] = {}
    ends: dict[int, list[float]] = {}
    for timeline in timelines:
        for group in {span.group for span in timeline.groups}:
            parts = [span for span in timeline.groups if span.group == group]
            starts.setdefault(group, []).append(min(part.start_seconds for part in parts))
            ends.setdefault(group, []).append(max(part.end_seconds for part in parts))
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
    """Returns a table of the plans in interleaved trials, the active one first.

    Steps of the other plans are relative to the active plan's, as the plans were compared.
    """
    rows: list[tuple[str, ...]] = [
        ("plan", "step", "99 % confidence", "verdict", "predicted", "rounds")
    ]
    winner = race.winner
    for candidate in race.candidates:
        compared = race.compare(candidate)
        step, limits, verdict = formatting.NONE, formatting.NONE, formatting.NONE
        if candidate is winner:
            step, verdict = formatting.time(winner.median_seconds), "active"
        elif compared is not None:
            step = formatting.change(compared.ratio - 1)
            limits = formatting.limits(compared.low, compared.high)
            faster = "slower" if compared.ratio > 1 else "faster"
            verdict = "as fast" if compared.is_noise else faster
        rows.append(
            (
                name_plan(candidate),
                step,
                limits,
                verdict,
                _predicted_step(candidate, winner),
                str(len(candidate.seconds)),
            )
        )
    return _aligned(rows)


def _predicted_step(candidate: Candidate, winner: Candidate) -> str:
    """Returns the winner's predicted step, or the predicted change of another plan's."""
    if candidate is winner or not (candidate.predicted_seconds and winner.predicted_seconds):
        return formatting.time(candidate.predicted_seconds)
    return formatting.change(candidate.predicted_seconds / winner.predicted_seconds - 1)


def times(run: RunSnapshot) -> list[str]:
    """Returns lines of measured steps and of measured and predicted backward time."""
    lines = []
    seconds = run.step_seconds.get(Phase.RUN)
    if seconds:
        low, middle, high = (float(value) for value in np.quantile(seconds, (0.25, 0.5, 0.75)))
        lines.append(
            f"step: measured {formatting.time(middle)} (middle half {formatting.time(low)} to"
            f" {formatting.time(high)}, {len(seconds)} steps under the plan)"
        )
    conclusion = run.conclusion
    if conclusion is None:
        return lines
    race = conclusion.race
    compared = compare_with_one_all_reduce(race)
    has_trials = race is not None and race.num_rounds > 0
    if compared is not None:
        lines.append(f"step in trials: {compared.describe()}")
    elif seconds and not conclusion.plan.is_one_all_reduce and not has_trials:
        lines.append("step: not compared with other plans, as no interleaved trials were run")
    measured = run.median_backward_seconds()
    if measured is not None:
        predicted = conclusion.plan.predicted_seconds
        line = f"backward: measured {formatting.time(measured)}"
        if predicted is not None:
            line += (
                f", predicted {formatting.time(predicted)}"
                f" ({formatting.change(predicted / measured - 1)})"
            )
        lines.append(line)
    return lines
