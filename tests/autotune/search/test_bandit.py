"""Bandit formula on hand-made histories, and its invariants."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_libra.autotune.search.bandit import Use, area_under_curve, choose, scores

NAMES = ("grid", "nsga2", "bayesian")


def history(text: str) -> list[Use]:
    """Returns uses by initials; a capital letter marks a new best."""
    names = {name[0]: name for name in NAMES}
    return [Use(names[letter.lower()], letter.isupper()) for letter in text]


@pytest.mark.parametrize(
    ("found_best", "area"),
    [
        ([], 0.0),
        ([False], 0.0),
        ([True], 1.0),
        ([True, False], 1 / 3),
        ([False, True], 2 / 3),
        ([True, True, True], 1.0),
        ([True, False, True, False], 4 / 10),
    ],
)
def test_area_of_hand_made_curves(found_best: list[bool], area: float) -> None:
    assert area_under_curve(found_best) == pytest.approx(area)


def test_score_of_a_hand_made_history() -> None:
    """Eight uses: lg|H| = 3. grid 4 times, nsga2 twice, bayesian twice."""
    found = scores(history("GnbgGbng"), NAMES, exploration=0.2)
    assert found["grid"] == pytest.approx(4 / 10 + 0.2 * math.sqrt(6 / 4))
    assert found["nsga2"] == pytest.approx(0.2 * math.sqrt(6 / 2))
    assert found["bayesian"] == pytest.approx(0.2 * math.sqrt(6 / 2))
    assert choose(history("GnbgGbng"), NAMES) == "grid"
    # Without what it has found, it has only been used the most.
    assert choose(history("gnbggbng"), NAMES) == "nsga2"


def test_uses_outside_the_window_are_ignored() -> None:
    uses = history("G" + "nb" * 4)
    assert scores(uses, NAMES, window=9)["grid"] < math.inf
    assert scores(uses, NAMES, window=8)["grid"] == math.inf
    assert choose(uses, NAMES, window=8) == "grid"


def test_unused_searchers_are_chosen_first_in_order() -> None:
    uses: list[Use] = []
    for name in NAMES:
        assert choose(uses, NAMES) == name
        uses.append(Use(name, False))


uses = st.lists(st.builds(Use, st.sampled_from(NAMES), st.booleans()), max_size=60)


@given(uses, st.floats(0, 3), st.integers(1, 70))
def test_chosen_searcher_has_the_greatest_score(uses, exploration, window) -> None:
    found = scores(uses, NAMES, exploration, window)
    assert found[choose(uses, NAMES, exploration, window)] == max(found.values())


@given(uses, st.sampled_from(NAMES))
def test_area_is_a_share_and_rises_with_a_new_best(uses, name) -> None:
    own = [use.found_best for use in uses if use.searcher == name]
    assert 0 <= area_under_curve(own) <= 1
    assert area_under_curve([*own, True]) >= area_under_curve(own)
    assert area_under_curve([*own, False]) <= area_under_curve(own)


@given(uses.filter(lambda found: len(found) >= 2))
def test_exploration_term_decreases_with_uses(uses) -> None:
    barren = [Use(use.searcher, False) for use in uses]
    found = scores(barren, NAMES, window=100)
    times = {name: sum(use.searcher == name for use in uses) for name in NAMES}
    for sampler in NAMES:
        for other in NAMES:
            if times[sampler] < times[other]:
                assert found[sampler] > found[other]


def test_removed_searchers_count_for_the_history_length() -> None:
    uses = history("GgGgnnnn")
    alone = scores(uses, ["nsga2"], exploration=1.0)
    assert alone == {"nsga2": pytest.approx(math.sqrt(2 * 3 / 4))}


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="searchers must hold at least one"):
        choose([], [])
    with pytest.raises(ValueError, match="exploration must be"):
        scores([], NAMES, exploration=-0.1)
    with pytest.raises(ValueError, match="window must be"):
        scores([], NAMES, window=0)
