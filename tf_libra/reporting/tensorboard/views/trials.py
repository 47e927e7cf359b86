"""View of interleaved trials."""

import dataclasses
from typing import Any

from tf_libra.autotune.search.result import Search
from tf_libra.autotune.trial_comparison import Race, compare_with_one_all_reduce
from tf_libra.reporting.records.timeline import Spread


def race_view(race: Race | None) -> list[dict[str, Any]] | None:
    """Returns the plans of interleaved trials, the active one first; None without trials.

    `ratio` is a plan's step to the winner's, from adjacent steps; `is_noise` marks a difference
    that is not significant. Both have no meaning for the winner.
    """
    if race is None:
        return None
    rows = []
    for candidate in race.candidates:
        lead = race.ratio_and_p_value(candidate)
        rows.append(
            {
                "strategy": candidate.plan.strategy,
                "fingerprint": candidate.plan.fingerprint,
                "num_groups": len(candidate.plan.groups),
                "threads": sorted({group.num_threads for group in candidate.plan.groups}),
                "num_rounds": len(candidate.seconds),
                "step": dataclasses.asdict(Spread.from_values(candidate.seconds))
                if candidate.seconds
                else None,
                "predicted_seconds": candidate.predicted_seconds,
                "ratio": None if lead is None else lead[0],
                "is_noise": race.is_noise(candidate),
            }
        )
    return rows


def comparison_view(race: Race | None) -> dict[str, Any] | None:
    """Returns the active plan's step against one all-reduce after backward; None if unknown."""
    compared = compare_with_one_all_reduce(race)
    if compared is None:
        return None
    return {
        "low": compared.low,
        "ratio": compared.ratio,
        "high": compared.high,
        "is_noise": compared.is_noise,
        "num_rounds": compared.num_rounds,
        "text": compared.describe(),
    }


def search_view(search: Search | None) -> dict[str, Any] | None:
    """Returns the measured settings with their searchers; None without a search.

    `searchers` are in the order of their first use; `searcher` is "start" for the first settings.
    """
    if search is None:
        return None
    used: dict[str, list[bool]] = {}
    for use in search.history:
        used.setdefault(use.searcher, []).append(use.found_best)
    return {
        "best": None if search.best is None else dataclasses.asdict(search.best),
        "num_settings": len(search.seconds),
        "searchers": [
            {"name": name, "num_steps": len(found), "new_bests": sum(found)}
            for name, found in used.items()
        ],
        "trials": [
            {
                "searcher": trial.searcher,
                **dataclasses.asdict(trial.setting),
                "seconds": trial.seconds,
                "found_best": trial.found_best,
            }
            for trial in search.trials
        ],
    }
