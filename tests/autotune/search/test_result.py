import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_libra.autotune.search.result import START, Search
from tf_libra.planning.data_parallel.aiacc import CommConfig

SETTINGS = [CommConfig(2**i, streams, 1) for i in (16, 20) for streams in (1, 2)]
steps = st.lists(
    st.tuples(st.sampled_from((START, "grid", "bayesian")), st.sampled_from(SETTINGS),
              st.floats(1e-4, 10)),
    max_size=20,
)  # fmt: skip


def made(steps) -> Search:
    found = Search()
    for searcher, setting, seconds in steps:
        found = found.with_trial(searcher, setting, seconds)
    return found


@given(steps)
def test_search_survives_json(steps) -> None:
    found = made(steps)
    assert Search.parse("search", json.loads(json.dumps(found.to_document()))) == found


@given(steps)
def test_new_bests_are_the_shortest_medians_so_far(steps) -> None:
    least, so_far = float("inf"), Search()
    for step, trial in zip(steps, made(steps).trials, strict=True):
        so_far = so_far.with_trial(*step)
        medians = so_far.seconds
        assert trial.found_best == (medians[trial.setting] < least)
        least = min(medians.values())


def test_one_disturbed_step_loses_a_setting_nothing() -> None:
    first, other = SETTINGS[:2]
    found = made([("grid", first, s) for s in (0.1, 0.1, 9.0)] + [("grid", other, 0.2)])
    assert found.best == first
    assert "best of 2 settings in 4 steps: units of 65.54 kB on" in found.describe()


def test_initial_settings_credit_no_searcher() -> None:
    found = made([(START, SETTINGS[0], 0.1), ("grid", SETTINGS[1], 0.05)])
    assert [(use.searcher, use.found_best) for use in found.history] == [("grid", True)]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("seconds", 0, "seconds must be"),
        ("found_best", "yes", "found_best"),
        ("setting", {"unit_bytes": 0, "num_streams": 1, "num_threads": 1}, "unit_bytes must be"),
        ("searcher", 3, "searcher must be"),
    ],
)
def test_damaged_search_is_rejected_by_field(field: str, value, message: str) -> None:
    [document] = made([("grid", SETTINGS[0], 0.1)]).to_document()
    with pytest.raises(ValueError, match=message):
        Search.parse("search", [{**document, field: value}])
