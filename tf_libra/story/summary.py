"""What a training function knows, as text of at most 100 columns."""

import statistics
import textwrap
from collections.abc import Sequence

from tf_libra.backends import backend, nccl
from tf_libra.planning.explain import explain
from tf_libra.profiling.samples import MeasuredTimeline
from tf_libra.simulation import simulate
from tf_libra.story.facts import Facts
from tf_libra.tuning import Conclusion, Phase

WIDTH = 100


def describe(facts: Facts) -> str:
    """The whole story so far: phase, model, plan, predicted and measured times."""
    lines = [f"phase: {facts.phase.value}", *times(facts)]
    conclusion = facts.conclusion
    if conclusion is not None:
        if conclusion.is_fitted:
            lines += ["", *fit_table(conclusion)]
        lines += ["", "plan, in ms since the start of backward:"]
        lines.append(plan_table(conclusion, facts.timelines))
        lines.append("")
        plan, profile, model = conclusion.plan, conclusion.profile, conclusion.cost_model
        if profile is not None and model is not None:
            lines.append(str(explain(profile, plan, model)))
        else:
            for note in plan.notes:
                lines += _wrapped(f"note: {note}")
    for remark in facts.remarks:
        lines += _wrapped(f"note: {remark}")
    executes = "" if conclusion is None else backend.resolve(facts.engine).describe()
    if executes:
        lines += _wrapped(f"engine: {executes}")
    if nccl.in_use():
        lines += _wrapped(nccl.counters().describe())
    return "\n".join(lines)


def summary_line(facts: Facts) -> str:
    """How the training went, in one line."""
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
    if after is None:
        return told
    told += f", {after * 1e3:.1f} ms each"
    before = facts.median_step_seconds(Phase.MEASURE)
    if before is None or groups == 1:  # a single one is after backward itself
        return told
    return f"{told}; {after / before - 1:+.1%} against one all-reduce after backward"


def _wrapped(text: str) -> list[str]:
    wrapper = textwrap.TextWrapper(
        WIDTH, subsequent_indent=" " * 5, break_long_words=False, break_on_hyphens=False
    )
    return [part for line in text.splitlines() for part in wrapper.wrap(line)]


def fit_line(conclusion: Conclusion) -> str:
    """The fitted formulas with their error."""
    assert conclusion.cost_model is not None and conclusion.median_error is not None
    model = conclusion.cost_model
    rates = ", ".join(
        f"r={r}: computation x{1 / float(model.compute_rate(r)):.2f}"
        f" {float(model.overlapped_rate(r)) / 1e6:.0f}/{float(model.exclusive_rate(r)) / 1e6:.0f}"
        " MB/s"
        for r in sorted({sample.num_threads for sample in conclusion.samples})
    )
    held_out_error = conclusion.held_out_error
    held_out = (
        "no held-out steps"
        if held_out_error is None
        else f"held-out steps missed by {held_out_error:.1%} in the median"
    )
    return (
        f"{model.formula()};\n"
        f"     {rates} (overlapped/alone);\n"
        f"     {len(conclusion.samples)} samples, median error of an all-reduce"
        f" {conclusion.median_error:.1%}; {held_out}"
    )


def fit_table(conclusion: Conclusion) -> list[str]:
    """The fitted model at the threads that were sampled, a row each, and its error."""
    assert conclusion.cost_model is not None and conclusion.median_error is not None
    model = conclusion.cost_model
    rows = [("threads", "computation", "overlapped", "alone")]
    rows += [
        (
            f"r={r}",
            f"x{1 / float(model.compute_rate(r)):.2f}",
            f"{float(model.overlapped_rate(r)) / 1e6:.0f} MB/s",
            f"{float(model.exclusive_rate(r)) / 1e6:.0f} MB/s",
        )
        for r in sorted({sample.num_threads for sample in conclusion.samples})
    ]
    held_out = (
        "it was not tested on steps it has not seen"
        if conclusion.held_out_error is None
        else f"steps of plans it has not seen are missed by {conclusion.held_out_error:.1%}"
    )
    return [
        "fitted model: slowdown of computation, and transmission rates:",
        _aligned(rows),
        *_wrapped(
            f"  startup {model.startup_seconds * 1e3:.2f} ms overlapped,"
            f" {model.exclusive_startup_seconds * 1e3:.2f} ms alone;"
            f" {len(conclusion.samples)} samples, an all-reduce is missed by"
            f" {conclusion.median_error:.1%} in the median; {held_out}"
        ),
    ]


def plan_table(conclusion: Conclusion, timelines: Sequence[MeasuredTimeline] = ()) -> str:
    """The plan as a table; with predicted times where there is something to predict them by.

    With measured timelines, it has their medians beside what is predicted.
    """
    plan, profile, cost_model = conclusion.plan, conclusion.profile, conclusion.cost_model
    rows: list[tuple[str, ...]] = [("group", "tensors", "MB", "threads", "start ms", "end ms")]
    measured = _measured(timelines)
    if measured:
        rows[0] += ("measured start", "end")
    spans = None
    if profile is not None and cost_model is not None:
        spans = simulate(profile, plan, cost_model).groups
    for index, group in enumerate(plan.groups):
        megabytes = plan.group_bytes[index] / 1e6
        predicted = ("-", "-")
        if spans is not None:
            span = spans[index]
            predicted = (f"{span.start_seconds * 1e3:.1f}", f"{span.end_seconds * 1e3:.1f}")
        rows.append(
            (
                str(index),
                f"{group.stop - group.start} ({group.start}..{group.stop - 1})",
                f"{megabytes:.3f}",
                str(group.num_threads),
                *predicted,
                *(measured.get(index, ("-", "-")) if measured else ()),
            )
        )
    return _aligned(rows)


def _measured(timelines: Sequence[MeasuredTimeline]) -> dict[int, tuple[str, str]]:
    """When groups started and ended, medians in milliseconds; of several parts, first and last."""
    starts: dict[int, list[float]] = {}
    ends: dict[int, list[float]] = {}
    for timeline in timelines:
        for group in {one.group for one in timeline.groups}:
            parts = [one for one in timeline.groups if one.group == group]
            starts.setdefault(group, []).append(min(one.start_seconds for one in parts))
            ends.setdefault(group, []).append(max(one.end_seconds for one in parts))
    return {
        group: (
            f"{statistics.median(starts[group]) * 1e3:.1f}",
            f"{statistics.median(ends[group]) * 1e3:.1f}",
        )
        for group in starts
    }


def _aligned(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )


def times(facts: Facts) -> list[str]:
    """Predicted and measured backward time, and step times before and after."""
    lines = []
    measured = facts.median_backward_seconds()
    if facts.conclusion is not None and measured is not None:
        predicted = facts.conclusion.plan.predicted_seconds
        if predicted is None:
            lines.append(f"backward: measured {measured * 1e3:.1f} ms")
        else:
            lines.append(
                f"backward: predicted {predicted * 1e3:.1f} ms, measured {measured * 1e3:.1f} ms"
                f" ({predicted / measured - 1:+.1%})"
            )
    before = facts.median_step_seconds(Phase.MEASURE)
    after = facts.median_step_seconds(Phase.RUN)
    if before is not None:
        lines.append(f"step before: {before * 1e3:.1f} ms (all-reduce after backward)")
    if after is not None:
        change = f" ({after / before - 1:+.1%})" if before else ""
        lines.append(f"step after: {after * 1e3:.1f} ms{change}")
    return lines
