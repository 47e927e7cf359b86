"""Figures of a plan's views, for papers. Needs Matplotlib.

They are drawn from the same answers as the page.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tf_libra.internal import formatting
from tf_libra.reporting.report.logdir_source import Answers
from tf_libra.reporting.tensorboard.record_lookup import job_folder

_COMPUTATION, _SLOWED = "#4a7fb5", "#7e6fb0"
_OVERLAPPED, _RESIDUAL = "#e9a13b", "#c8374a"
_MARKS = "osD^v<>p*"
_WIDTH = 7.0  # inches, the width of a text column
_TITLE_CHARACTERS = 90


_Known = dict[tuple[str, tuple[tuple[str, Any], ...]], Any]


def draw_figures(answers: Answers, folder: Path, kind: str, name: str) -> list[str]:
    """Draws the views of the last plan of every run and training function into `folder`.

    The figures of a single plan are in `folder`; of several plans, each has its own folder there,
    named by the run's path and, if a run has several functions, by the function.

    Args:
        answers: answers about a log directory.
        folder: output folder, created if missing.
        kind: "png" or "svg".
        name: name of the log directory, for the run without a name of its own.

    Returns:
        Names of the plans without figures, each with the reason.

    Raises:
        ImportError: Matplotlib is not installed.
        OSError: a file cannot be written.
        ValueError: no plan, or no plan with anything to draw.
    """
    known: _Known = {
        (route, tuple(sorted(parameters.items()))): answer.get("value")
        for route, parameters, answer in answers
    }
    # The last activated plan of each function in each run.
    last = {(plan["run"], plan["function"]): plan for plan in known["runs", ()]["plans"]}
    if not last:
        raise ValueError("no plan to draw")
    jobs = [job_folder(run) for run, _ in last]
    skipped: list[str] = []
    taken: set[Path] = set()
    for (run, function), plan in last.items():
        job = job_folder(run)
        num_functions = jobs.count(job)
        own = folder / job if num_functions < len(last) else folder
        if num_functions > 1:
            own /= re.sub(r"[^\w#-]+", "_", function)[:60]
        while own in taken:
            own = own.with_name(f"{own.name}_")
        taken.add(own)
        title = f"{name if job in ('', '.') else job}: {function}"
        try:
            _draw(known, {"run": run, "tag": plan["tag"]}, own, kind, _short(title))
        except ValueError as error:
            if len(last) == 1:
                raise
            skipped.append(f"{title!r:.80}: {error}")
    if len(skipped) == len(last):
        raise ValueError(f"nothing to draw of {len(last)} plans")
    return skipped


def _short(text: str) -> str:
    """Shortens a name for a figure's title."""
    flat = " ".join(text.split())
    return flat if len(flat) <= _TITLE_CHARACTERS else f"{flat[: _TITLE_CHARACTERS - 1]}…"


def _draw(known: _Known, plan: dict[str, str], folder: Path, kind: str, title: str) -> None:
    """Draws one plan's views; a plan without anything to draw is a `ValueError`."""
    from matplotlib.figure import Figure

    def answer(route: str, **parameters: str) -> Any:
        return known.get((route, tuple(sorted((plan | parameters).items()))))

    timelines = [
        (name, found)
        for name in ("measured", "predicted")
        if (found := answer("timeline", show=name)) is not None
    ]
    table = answer("strategies")
    pages: dict[str, tuple[float, Callable[[Any], None]]] = {}
    if timelines:
        pages["timeline"] = 0.8 + 1.1 * len(timelines), lambda figure: _timeline(figure, timelines)
    if (fitted := answer("contention"))["curves"] is not None:
        pages["contention"] = 2.8, lambda figure: _contention(figure, fitted)
    if table is not None and table["rows"]:
        studies = [
            study
            for (route, parameters), study in known.items()
            if route == "strategies" and study and dict(parameters).get("workers")
            if plan.items() <= dict(parameters).items()
        ]
        pages["strategies"] = 3.6, lambda figure: _strategies(figure, table)
        pages["scale_out"] = 3.2, lambda figure: _scale_out(figure, studies)
    if not pages:
        raise ValueError("neither a fitted model nor a traced step: nothing to draw")
    folder.mkdir(parents=True, exist_ok=True)
    for name, (height, fill) in pages.items():
        figure = Figure(figsize=(_WIDTH, height + 0.3), layout="constrained")
        figure.suptitle(title, fontsize=9, parse_math=False)
        fill(figure)
        figure.savefig(folder / f"{name}.{kind}", format=kind, dpi=200)


def _timeline(figure: Any, timelines: list[tuple[str, dict[str, Any]]]) -> None:
    """Draws computation above communication, measured and predicted on one time axis."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    axes = figure.subplots(len(timelines), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (name, timeline) in zip(axes, timelines, strict=True):
        end = timeline["compute"]["median"]
        for piece in timeline["computation"]:
            slowed = piece["rate"] is not None and piece["rate"] < 1 and piece["overlapped_groups"]
            axis.broken_barh(
                [_milliseconds(piece["from"], piece["to"])], (1.1, 0.8),
                color=_SLOWED if slowed else _COMPUTATION, edgecolor="white",
            )  # fmt: skip
        for span in timeline["spans"]:
            start, stop = span["from"]["median"], span["to"]["median"]
            overlapped = max(start, min(stop, end))
            for begin, finish, color in (
                (start, overlapped, _OVERLAPPED),
                (overlapped, stop, _RESIDUAL),
            ):
                if finish > begin:
                    axis.broken_barh([_milliseconds(begin, finish)], (0.1, 0.8), color=color)
            for at in (span["from"], span["to"]):
                if at["low"] < at["high"]:  # quartiles over steps, below the labels
                    low, high = 1e3 * at["low"], 1e3 * at["high"]
                    axis.plot([low, high], [0.18, 0.18], "|-", color="black", lw=0.7, ms=4)
            if stop - start > 0.07 * timeline["backward"]["median"]:
                axis.text(
                    500 * (start + stop), 0.5, f"{span['group']}\nr={span['num_threads']}",
                    ha="center", va="center", fontsize=7,
                )  # fmt: skip
        axis.axvline(1e3 * timeline["backward"]["median"], color="black", lw=0.8, ls=":")
        axis.set_yticks([1.5, 0.5], ["computation", "communication"], fontsize=8)
        steps = f", median of {timeline['num_steps']} steps" if timeline["num_steps"] else ""
        total = formatting.time(timeline["backward"]["median"])
        axis.set_title(f"{name}{steps}: {total}", fontsize=9, loc="left")
    axes[-1].set_xlim(left=0)
    axes[-1].set_xlabel("ms since the start of backward")
    handles: list[Any] = [
        Patch(color=_COMPUTATION, label="computation"),
        Patch(color=_SLOWED, label="slowed by communication"),
        Patch(color=_OVERLAPPED, label="overlapped all-reduce"),
        Patch(color=_RESIDUAL, label="residual communication"),
    ]
    if any(timeline["num_steps"] for _, timeline in timelines):
        handles.append(Line2D([], [], color="black", marker="|", lw=0.7, label="quartiles"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=7)


def _milliseconds(start: float, stop: float) -> tuple[float, float]:
    return 1e3 * start, 1e3 * (stop - start)


def _contention(figure: Any, view: dict[str, Any]) -> None:
    """Draws slowdown and transmission rates over threads: samples and fit."""
    slowdown, rates = figure.subplots(1, 2)
    curves, samples = view["curves"], view["samples"]
    seen = [s for s in samples if s["slowdown"] is not None]
    slowdown.plot(
        [s["num_threads"] for s in seen], [s["slowdown"] for s in seen], ".", color=_SLOWED, ms=3
    )
    slowdown.plot(curves["num_threads"], curves["slowdown"], color=_SLOWED)
    slowdown.set_ylabel("slowdown of computation")
    for kind, color, overlapped in (
        ("overlapped", _OVERLAPPED, True),
        ("exclusive", _RESIDUAL, False),
    ):
        seen = [
            s for s in samples if s["rate"] is not None and (s["overlap_seconds"] > 0) is overlapped
        ]
        rates.plot(
            [s["num_threads"] for s in seen], [s["rate"] / 1e6 for s in seen], ".",
            color=color, ms=3,
        )  # fmt: skip
        fitted = [rate / 1e6 for rate in curves[f"{kind}_rate"]]
        rates.plot(curves["num_threads"], fitted, color=color, label=kind)
    rates.set_ylabel("transmission rate in MB/s")
    rates.legend(fontsize=8)
    for axis in (slowdown, rates):
        axis.set_yscale("log")  # single steps stray far
        axis.set_xlabel("communication threads r")


def _strategies(figure: Any, table: dict[str, Any]) -> None:
    """Draws the predicted backward time of every strategy."""
    axis = figure.subplots()
    rows = [row for row in table["rows"] if row["backward_seconds"] is not None]
    names = [
        row["strategy"] + ("" if row["num_threads"] is None else f", r={row['num_threads']}")
        for row in rows
    ]
    seconds = [1e3 * row["backward_seconds"] for row in rows]
    bars = axis.barh(names, seconds, color=_COMPUTATION)
    axis.bar_label(
        bars, [formatting.time(row["backward_seconds"]) for row in rows], fontsize=7, padding=2
    )
    axis.margins(x=0.1)
    axis.invert_yaxis()
    axis.tick_params(axis="y", labelsize=7)
    axis.set_xlabel(f"predicted backward in ms, {table['num_workers']} workers")


def _scale_out(figure: Any, studies: list[dict[str, Any]]) -> None:
    """Draws predicted backward over world sizes, each strategy at its best threads, to LIBRA."""
    axis = figure.subplots()
    best: dict[str, list[tuple[int, float]]] = {}
    for study in sorted(studies, key=lambda study: study["num_workers"]):
        found: dict[str, float] = {}
        for row in study["rows"]:
            if row["backward_seconds"] is not None:
                known = found.get(row["strategy"], float("inf"))
                found[row["strategy"]] = min(known, row["backward_seconds"])
        if "libra" not in found:  # no reference to compare with
            continue
        for name, seconds in found.items():
            best.setdefault(name, []).append((study["num_workers"], seconds / found["libra"]))
    for (name, points), mark in zip(best.items(), _MARKS * 2, strict=False):
        axis.plot(*zip(*points, strict=True), marker=mark, ms=4, lw=1, label=name)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xlabel("workers")
    axis.set_ylabel("predicted backward / LIBRA's")
    if best:
        axis.legend(fontsize=7, ncols=2)
