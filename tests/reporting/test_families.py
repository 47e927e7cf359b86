"""Families of strategies as text."""

import dataclasses

from tests.reporting.tensorboard import examples
from tf_libra.internal import formatting
from tf_libra.planning.family_comparison import FamilyComparison, FamilyRow
from tf_libra.reporting.families import describe_families

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


def test_ratios_compare_measured_with_measured_steps_alone() -> None:
    rows = (FamilyRow("data parallelism", 1.0, 2.0), FamilyRow("spp", 3.0, left_out="slow"))
    *_, last, _ = describe_families(FamilyComparison(2, rows, "data parallelism"))
    assert last.split() == ["spp", "3", "s", "-", "-"]
    predicted = tuple(dataclasses.replace(row, measured_seconds=None) for row in rows)
    *_, last, _ = describe_families(FamilyComparison(2, predicted, "data parallelism"))
    assert last.split() == ["spp", "3", "s", "-", "3.00"]
