"""What a training function knows, as text of at most 100 columns."""

import statistics
import textwrap
from typing import TYPE_CHECKING

from tf_libra.backends import backend, nccl
from tf_libra.cost_model import ContentionModel
from tf_libra.model.plan import Plan
from tf_libra.model.profile import BackwardProfile
from tf_libra.planning.explain import explain
from tf_libra.simulation import simulate
from tf_libra.tuning import Phase, Tuned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tf_libra.profiling.samples import MeasuredTimeline
    from tf_libra.story.journal import Journal

WIDTH = 100


def describe(journal: "Journal") -> str:
    """The whole story so far: phase, model, plan, predicted and measured times."""
    lines = [f"phase: {journal.phase.value}", *times(journal)]
    tuned = journal.tuned
    if tuned is not None and tuned.fit is not None:
        lines += ["", *fit_table(tuned)]
    plan, profile, model = journal.plan, journal.profile, journal.cost_model
    if plan is not None:
        lines += ["", "plan, in ms since the start of backward:"]
        lines.append(plan_table(plan, profile, model, journal.timelines))
        lines.append("")
        if profile is not None and model is not None:
            lines.append(str(explain(profile, plan, model)))
        else:
            for note in plan.notes:
                lines += _wrapped(f"note: {note}")
    for remark in journal.remarks:
        lines += _wrapped(f"note: {remark}")
    executes = "" if plan is None else backend.resolve(journal.options.engine).describe()
    if executes:
        lines += _wrapped(f"engine: {executes}")
    if nccl.in_use():
        lines += _wrapped(nccl.counters().describe())
    return "\n".join(lines)


def summary_line(journal: "Journal") -> str:
    """How the training went, in one line."""
    steps = journal.num_steps.total()
    told = f"{journal.function}: {steps} step{'s' if steps > 1 else ''}"
    after = journal.median_step_seconds(Phase.RUN)
    if journal.plan is None and journal.phase is Phase.RUN:
        return f"{told}, with nothing to plan"
    if journal.plan is None:
        return f"{told}, which ended before a plan was in force (phase {journal.phase.value})"
    groups = len(journal.plan.groups)
    told += (
        f", {journal.num_steps[Phase.RUN]} of them under a plan of {journal.plan.strategy}"
        f" ({groups} group{'s' if groups > 1 else ''})"
    )
    if after is None:
        return told
    told += f", {after * 1e3:.1f} ms each"
    before = journal.median_step_seconds(Phase.MEASURE)
    if before is None:
        return told
    return f"{told}; {after / before - 1:+.1%} against one all-reduce after backward"


def _wrapped(text: str) -> list[str]:
    wrapper = textwrap.TextWrapper(
        WIDTH, subsequent_indent=" " * 5, break_long_words=False, break_on_hyphens=False
    )
    return [part for line in text.splitlines() for part in wrapper.wrap(line)]


def fit_line(tuned: Tuned) -> str:
    """The fitted formulas with their error."""
    assert tuned.cost_model is not None and tuned.fit is not None
    model = tuned.cost_model
    alpha1, alpha2 = model.compute
    rates = ", ".join(
        f"r={r}: computation x{1 / float(model.compute_rate(r)):.2f}"
        f" {float(model.overlapped_rate(r)) / 1e6:.0f}/{float(model.exclusive_rate(r)) / 1e6:.0f}"
        " MB/s"
        for r in sorted({sample.num_threads for sample in tuned.samples})
    )
    held_out = (
        "no held-out steps"
        if tuned.held_out_error is None
        else f"backward time of held-out steps missed by {tuned.held_out_error:.1%} in the median"
    )
    return (
        f"g(b, r) = b / ({alpha1:.3f} - {alpha2:.3f} r),"
        f" a = {model.startup_seconds * 1e3:.2f} ms overlapped,"
        f" {model.exclusive_startup_seconds * 1e3:.2f} ms alone;\n"
        f"     {rates} (overlapped/alone);\n"
        f"     {len(tuned.samples)} samples, median error of an all-reduce"
        f" {tuned.fit.median_error:.1%}; {held_out}"
    )


def fit_table(tuned: Tuned) -> list[str]:
    """The fitted model at the threads that were sampled, a row each, and its error."""
    assert tuned.cost_model is not None and tuned.fit is not None
    model = tuned.cost_model
    rows = [("threads", "computation", "overlapped", "alone")]
    rows += [
        (
            f"r={r}",
            f"x{1 / float(model.compute_rate(r)):.2f}",
            f"{float(model.overlapped_rate(r)) / 1e6:.0f} MB/s",
            f"{float(model.exclusive_rate(r)) / 1e6:.0f} MB/s",
        )
        for r in sorted({sample.num_threads for sample in tuned.samples})
    ]
    held_out = (
        "it was not tested on steps it has not seen"
        if tuned.held_out_error is None
        else f"backward of steps it has not seen is missed by {tuned.held_out_error:.1%}"
    )
    return [
        "fitted model: slowdown of computation, and transmission rates:",
        _aligned(rows),
        *_wrapped(
            f"  startup {model.startup_seconds * 1e3:.2f} ms overlapped,"
            f" {model.exclusive_startup_seconds * 1e3:.2f} ms alone; {len(tuned.samples)} samples,"
            f" an all-reduce is missed by {tuned.fit.median_error:.1%} in the median; {held_out}"
        ),
    ]


def plan_table(
    plan: Plan,
    profile: BackwardProfile | None,
    cost_model: ContentionModel | None,
    timelines: "Sequence[MeasuredTimeline]" = (),
) -> str:
    """The plan as a table; with predicted times where there is something to predict them by.

    With measured timelines, it has their medians beside what is predicted.
    """
    rows: list[tuple[str, ...]] = [("group", "tensors", "MB", "threads", "start ms", "end ms")]
    measured = _measured(timelines)
    if measured:
        rows[0] += ("measured start", "end")
    spans = None
    if profile is not None and cost_model is not None:
        spans = simulate(profile, plan, cost_model).groups
    for index, group in enumerate(plan.groups):
        megabytes = sum(plan.num_bytes[group.start : group.stop]) / 1e6
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


def _measured(timelines: "Sequence[MeasuredTimeline]") -> dict[int, tuple[str, str]]:
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


def _aligned(rows: "Sequence[tuple[str, ...]]") -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )


def times(journal: "Journal") -> list[str]:
    """Predicted and measured backward time, and step times before and after."""
    lines = []
    if journal.plan is not None and journal.timelines:
        measured = statistics.median(t.backward_seconds for t in journal.timelines)
        predicted = journal.plan.predicted_seconds
        if predicted is None:
            lines.append(f"backward: measured {measured * 1e3:.1f} ms")
        else:
            lines.append(
                f"backward: predicted {predicted * 1e3:.1f} ms, measured {measured * 1e3:.1f} ms"
                f" ({predicted / measured - 1:+.1%})"
            )
    before = journal.median_step_seconds(Phase.MEASURE)
    after = journal.median_step_seconds(Phase.RUN)
    if before is not None:
        lines.append(f"step before: {before * 1e3:.1f} ms (all-reduce after backward)")
    if after is not None:
        change = f" ({after / before - 1:+.1%})" if before else ""
        lines.append(f"step after: {after * 1e3:.1f} ms{change}")
    return lines
