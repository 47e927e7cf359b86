"""Families of strategies as text."""

import dataclasses

import pytest

from tests.reporting.tensorboard import examples
from tf_libra.internal import formatting
from tf_libra.planning.family_comparison import FamilyComparison, FamilyRow, TrialCost
from tf_libra.reporting.families import FamilyRecord, describe_families, families_view

FAMILIES = examples.family_record("it is slow " * 20).families


def test_text_begins_with_one_worker_and_ends_with_what_is_left_out() -> None:
    lines = describe_families(FAMILIES, "active: data parallelism")
    assert lines[0].startswith("2 workers train 1.4 times as fast as one: a step takes 23 ms")
    table = [line.split() for line in lines if line.startswith("  ")]
    assert table == [
        ["predicted", "in", "trials", "ratio"],
        ["data", "parallelism", "24", "ms", "23", "ms", "1.00", "active"],
        ["one-rank", "at", "most", "35", "ms", "33", "ms", "1.43"],
        ["spp", "-", "-", "-"],
    ]
    assert any(line.startswith("spp is left out: it is slow") for line in lines)
    assert max(map(len, lines)) <= formatting.COLUMNS


def test_families_without_any_time_show_reasons_only() -> None:
    rows = (FamilyRow("data parallelism"), FamilyRow("spp", left_out="no plan"))
    assert describe_families(FamilyComparison(2, rows)) == ["spp is left out: no plan"]


def test_families_have_the_arguments_that_predictions_chose() -> None:
    rows = (FamilyRow("data parallelism"), FamilyRow("spp", 3.0, arguments="num_microbatches=8"))
    families = FamilyComparison(2, rows)
    assert FamilyComparison.from_json(families.to_json()) == families
    assert describe_families(families)[-1].split()[:2] == ["spp", "(num_microbatches=8)"]
    *_, row = families_view(FamilyRecord("train_step", 90, families))["rows"]
    assert row["arguments"] == "num_microbatches=8"


def test_ratios_compare_measured_with_measured_steps_alone() -> None:
    rows = (FamilyRow("data parallelism", 1.0, 2.0), FamilyRow("spp", 3.0, left_out="slow"))
    *_, last, _ = describe_families(FamilyComparison(2, rows, "data parallelism"))
    assert last.split() == ["spp", "3", "s", "-", "-"]
    predicted = tuple(dataclasses.replace(row, measured_seconds=None) for row in rows)
    *_, last, _ = describe_families(FamilyComparison(2, predicted, "data parallelism"))
    assert last.split() == ["spp", "3", "s", "-", "3.00"]


def test_text_says_what_trials_have_cost_and_why_they_did_not_choose() -> None:
    """The same texts are in the tab."""
    families = dataclasses.replace(
        FAMILIES, trials=TrialCost(90, 2.5, 0.125), untimed="3 of 40 steps are left"
    )
    lines = describe_families(families)
    [choice] = [line for line in lines if "by prediction" in line]
    [cost] = [line for line in lines if line.startswith("trials took ")]
    assert choice.endswith("by prediction, as 3 of 40 steps are left")
    assert [text for text in cost.split() if text[0].isdigit()] == ["90", "2.5", "12.5"]
    view = families_view(FamilyRecord("train_step", 90, families))
    assert (view["chosen"], view["trials"]) == (choice, cost)
    assert FamilyComparison.from_json(families.to_json()) == families


@pytest.mark.parametrize(("steps", "share"), [(0, 0.5), (3, 1.5), (3, -0.1)])
def test_cost_of_trials_is_a_share(steps: int, share: float) -> None:
    with pytest.raises(ValueError, match=r"^(num_steps|share) must be "):
        TrialCost(steps, 1.0, share)
