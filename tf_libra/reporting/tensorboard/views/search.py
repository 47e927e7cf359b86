"""View of a search of settings."""

import dataclasses
from typing import Any

from tf_libra.autotune.search.result import Search


def search_view(search: Search | None) -> dict[str, Any] | None:
    """Return the measured settings with their searchers; None without a search.

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
