"""View of interleaved trials."""

import dataclasses
from typing import Any

from tf_libra.autotune.search.result import Search
from tf_libra.autotune.trial_comparison import Race, compare_with_one_all_reduce


def race_view(race: Race | None) -> list[dict[str, Any]] | None:
    """Returns the plans of interleaved trials, the active one first; None without trials.

    `seconds` is the active plan's median step. `ratio` is another plan's step to the active plan's,
    from adjacent steps, with confidence limits `low` and `high`; `is_noise` marks a difference that
    is not significant. Predictions are compared in the same way.
    """
    if race is None:
        return None
    winner = race.winner
    rows = []
    for candidate in race.candidates:
        compared = race.compare(candidate)
        rows.append(
            {
                "strategy": candidate.plan.strategy,
                "fingerprint": candidate.plan.fingerprint,
                "groups": candidate.plan.describe_groups(),
                "threads": candidate.plan.thread_counts,
                "num_rounds": len(candidate.seconds),
                "seconds": candidate.median_seconds if candidate is winner else None,
                "low": None if compared is None else compared.low,
                "ratio": None if compared is None else compared.ratio,
                "high": None if compared is None else compared.high,
                "is_noise": compared is not None and compared.is_noise,
                "predicted_seconds": candidate.predicted_seconds,
                "predicted_ratio": candidate.predicted_seconds / winner.predicted_seconds
                if candidate.predicted_seconds and winner.predicted_seconds
                else None,
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
