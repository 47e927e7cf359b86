"""The trials of a search, as they are shown."""

from tf_libra.autotune.search.result import START, Search
from tf_libra.planning.comm_config import CommConfig
from tf_libra.reporting.tensorboard.views.search import search_view

SETTINGS = [CommConfig(2**i, streams, 1) for i in (16, 20) for streams in (1, 2)]


def test_steps_are_told_by_who_proposed_them() -> None:
    search = Search()
    for searcher, number, seconds in (
        (START, 0, 1.0), ("grid", 1, 2.0), ("bayesian", 2, 0.5), ("grid", 3, 0.25), ("grid", 1, 2.0)
    ):  # fmt: skip
        search = search.after(searcher, SETTINGS[number], seconds)
    view = search_view(search)
    assert view is not None
    # In the order of their first use; no searcher has proposed the start of a search.
    assert view["searchers"] == [
        {"name": "grid", "num_steps": 3, "new_bests": 1},
        {"name": "bayesian", "num_steps": 1, "new_bests": 1},
    ]
    assert view["num_settings"] == 4
    assert CommConfig(**view["best"]) == SETTINGS[3]
    assert [one["seconds"] for one in view["trials"]] == [1.0, 2.0, 0.5, 0.25, 2.0]
    assert [one["found_best"] for one in view["trials"]] == [True, False, True, True, False]
    assert view["trials"][1].items() >= {"searcher": "grid", "num_streams": 2}.items()


def test_where_nothing_was_tried_nothing_is_the_best() -> None:
    assert search_view(None) is None
    view = search_view(Search())
    assert view == {"best": None, "num_settings": 0, "searchers": [], "trials": []}
