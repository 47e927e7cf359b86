"""Views of interleaved trials and searches."""

from dataclasses import replace

from tests.reporting.tensorboard import examples
from tf_libra import strategies
from tf_libra.autotune.search.result import START, Search
from tf_libra.autotune.trial_comparison import Candidate, Race
from tf_libra.planning.data_parallel.aiacc import CommConfig
from tf_libra.reporting.tensorboard.views.trials import comparison_view, race_view, search_view
from tf_libra.specs.plan import Plan, TensorGroup

RECORD = examples.plan_record()
PLAN = RECORD.plan
ONE_GROUP = Plan.for_profile(
    examples.profile(),
    (TensorGroup(0, len(PLAN.tensor_names), 1),),
    PLAN.num_workers,
    strategies.SynEasgd.name,
)


def raced(winner: tuple[float, ...], other: tuple[float, ...]) -> Race:
    dropped = replace(PLAN, strategy="never run")
    return Race((Candidate(PLAN, 0.5, winner), Candidate(ONE_GROUP, None, other),
                 Candidate(dropped, 0.75, ())))  # fmt: skip


def test_trials_have_ratios_to_the_active_plan() -> None:
    first, second, never = race_view(raced((0.5, 0.51, 0.5, 0.49), (1.0, 1.02, 1.0, 0.98))) or []
    assert (first["num_rounds"], second["num_rounds"], never["num_rounds"]) == (4, 4, 0)
    assert first["ratio"] is None and not first["is_noise"]
    assert abs(second["ratio"] - 2) < 0.05 and not second["is_noise"]
    assert never["ratio"] is None and never["seconds"] is None and not never["is_noise"]
    assert first["seconds"] == 0.5 and second["predicted_seconds"] is None
    assert second["low"] < second["ratio"] < second["high"]
    assert never["predicted_ratio"] == 1.5 and second["predicted_ratio"] is None
    assert (second["groups"], second["threads"]) == ("1 group", [1])
    assert first["groups"] == f"{len(PLAN.groups)} groups"
    assert first["threads"] == sorted({group.num_threads for group in PLAN.groups})
    assert race_view(None) is None


def test_insignificant_difference_is_noise() -> None:
    seconds = (0.5, 0.6, 0.55, 0.65)
    [_, second, _] = race_view(raced(seconds, tuple(reversed(seconds)))) or []
    assert second["is_noise"]


def test_comparison_with_one_all_reduce_needs_two_rounds() -> None:
    assert comparison_view(None) is None
    assert comparison_view(raced((0.5,), (1.0,))) is None
    found = comparison_view(raced((0.5, 0.5), (1.0, 1.0)))
    assert found is not None
    assert found["low"] < found["ratio"] < found["high"] and found["num_rounds"] == 2
    assert abs(found["ratio"] - 0.5) < 1e-9
    assert "2 interleaved rounds" in found["text"]


SETTINGS = [CommConfig(2**i, streams, 1) for i in (16, 20) for streams in (1, 2)]


def test_search_view_groups_steps_by_searcher() -> None:
    search = Search()
    for searcher, number, seconds in (
        (START, 0, 1.0), ("grid", 1, 2.0), ("bayesian", 2, 0.5), ("grid", 3, 0.25), ("grid", 1, 2.0)
    ):  # fmt: skip
        search = search.with_trial(searcher, SETTINGS[number], seconds)
    view = search_view(search)
    assert view is not None
    # In the order of their first use; no searcher has proposed the start of a search.
    assert view["searchers"] == [
        {"name": "grid", "num_steps": 3, "new_bests": 1},
        {"name": "bayesian", "num_steps": 1, "new_bests": 1},
    ]
    assert view["num_settings"] == 4
    assert CommConfig(**view["best"]) == SETTINGS[3]
    assert [trial["seconds"] for trial in view["trials"]] == [1.0, 2.0, 0.5, 0.25, 2.0]
    assert [trial["found_best"] for trial in view["trials"]] == [True, False, True, True, False]
    assert view["trials"][1].items() >= {"searcher": "grid", "num_streams": 2}.items()


def test_empty_search_has_no_best_setting() -> None:
    assert search_view(None) is None
    view = search_view(Search())
    assert view == {"best": None, "num_settings": 0, "searchers": [], "trials": []}
