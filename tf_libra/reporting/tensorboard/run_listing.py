"""Listing of a log directory: plans, cards, and functions without a plan."""

from collections.abc import Mapping, Sequence
from typing import Any

from tf_libra import strategies
from tf_libra.reporting.records import record_types, scalar_tags
from tf_libra.reporting.records.plan import PlanRecord
from tf_libra.reporting.tensorboard.cache import Cache
from tf_libra.reporting.tensorboard.log_source import LogSource, Series
from tf_libra.reporting.tensorboard.record_lookup import digest, in_force, in_order, job_of
from tf_libra.reporting.tensorboard.views.card_registry import CARDS

_SHOWN: Cache[dict[str, Any]] = Cache(64)


def runs(source: LogSource) -> dict[str, Any]:
    """Return all plans by run, functions without a plan, and unreadable items with reasons.

    Cards are complete. `stamps` change with every write to a run; `strategies` lists the registered
    ones.
    """
    plans: list[dict[str, Any]] = []
    cards: dict[str, list[dict[str, Any]]] = {card.name: [] for card in CARDS.values()}
    problems: list[dict[str, str]] = []
    for run, tags in sorted(source.records().items()):
        for tag, series in sorted(tags.items()):
            try:
                kind = record_types.kind_of(series.content)
                if kind in CARDS:
                    shown = [_shown(kind, text) for _, text in source.documents(run, tag)]
                    cards[CARDS[kind].name] += [
                        {"run": run, "job": job_of(run)} | one for one in shown
                    ]
                if kind == PlanRecord.KIND:
                    plans += in_force(source, run, tag)
            except ValueError as error:
                problems.append({"run": run, "tag": tag, "message": str(error)})
    headings = in_order(plans)
    scalars = source.scalars()
    return {
        "plans": headings,
        **cards,
        "measuring": _measuring(source, scalars, headings),
        "strategies": _registered(),
        "stamps": _stamps(source.records(), scalars),
        "problems": problems,
    }


def _shown(kind: str, document: str) -> dict[str, Any]:
    return _SHOWN.get((kind, digest(document)), lambda: CARDS[kind].of(document))


def _measuring(
    source: LogSource,
    listed: Mapping[str, Mapping[str, Series]],
    plans: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Return functions that run without a plan yet, with their step and budget."""
    planned = {(plan["run"], plan["function"]) for plan in plans}
    found = []
    for run, tags in sorted(listed.items()):
        for tag in sorted(tags):
            function, _, name = tag.rpartition("/")
            if name != scalar_tags.MAX_TUNING_STEPS or (run, function) in planned:
                continue
            points = source.points(run, [tag], 1).get(tag, ())
            steps = [
                tags[one].last_step
                for one in (f"{function}/{series}" for series in scalar_tags.HISTORY)
                if one in tags
            ]
            most = int(points[-1][1]) if points else 0
            found.append(
                {"run": run, "function": function, "step": max(steps, default=0), "most": most}
            )
    return found


def _registered() -> list[dict[str, Any]]:
    """Return every registered strategy with its default tuning budget."""
    return [
        {
            "name": name,
            "tuning_steps": kind.tuning_steps,
            "tuning_seconds": kind.tuning_seconds,
        }
        for name, kind in strategies.BY_NAME.items()
    ]


def _stamps(*listings: Mapping[str, Mapping[str, Series]]) -> dict[str, float]:
    stamps: dict[str, float] = {}
    for listed in listings:
        for run, tags in listed.items():
            latest = max((series.last_written for series in tags.values()), default=0.0)
            stamps[run] = max(stamps.get(run, 0.0), latest)
    return stamps
