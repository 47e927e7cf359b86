from typing import Any

import numpy as np
import pytest

from benchmarks import results

SECONDS = {
    "none": [1.0, 2.0, 4.0],
    "horovod": [2.0, 2.0, 8.0],
    "libra": [1.0, 4.0, 6.0],
}


def test_ratios_are_paired_round_by_round() -> None:
    found = results.ratios(SECONDS)
    assert set(found) == {"libra/horovod", "libra/none", "horovod/none"}
    # Median of 1/2, 4/2, 6/8; the ratio of the medians would be 4/2.
    assert found["libra/horovod"]["median"] == 0.75
    assert found["libra/horovod"]["p10"] == pytest.approx(0.55)
    assert found["libra/horovod"]["p90"] == pytest.approx(1.75)


def test_one_worker_is_a_baseline_of_every_strategy() -> None:
    found = results.ratios(SECONDS | {"one-worker": [2.0, 2.0, 4.0]})
    assert found["libra/one-worker"]["median"] == 1.5
    assert found["horovod/one-worker"]["median"] == 1.0
    assert "none/one-worker" not in found


def test_without_a_baseline_there_are_no_ratios() -> None:
    assert results.ratios({"libra": [1.0], "wfbp": [2.0]}) == {}


def test_summaries_are_percentiles_over_rounds() -> None:
    found = results.summaries({"libra": list(np.arange(11.0))})
    assert found == {"libra": {"median_seconds": 5.0, "p10_seconds": 1.0, "p90_seconds": 9.0}}


def test_the_variant_with_the_smaller_median_counts_as_horovod() -> None:
    seconds = {"horovod:per_gradient": [1.0, 1.0, 9.0], "horovod:grouped": [2.0, 2.0, 2.0]}
    assert results.better_horovod(seconds) == "horovod:per_gradient"
    assert results.better_horovod({"none": [1.0]}) is None


def document(planner: str) -> dict[str, Any]:
    return {
        "strategies": results.summaries(SECONDS),
        "ratios": results.ratios(SECONDS),
        "plan": {"libra": {"strategy": planner}},
    }


def test_table_has_a_row_per_strategy_and_a_column_per_baseline() -> None:
    lines = results.table(document("libra"), markdown=True).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0] == ["strategy", "step, ms", "to horovod", "to none"]
    assert set("".join(cells[1])) == {"-"}
    assert [row[0] for row in cells[2:]] == ["none", "horovod", "libra"]
    assert cells[2][1:] == ["2000.0 (1200.0 to 3600.0)", "", ""]
    assert cells[4][2] == "0.750 (0.550 to 1.750)"
    plain = results.table(document("libra"), markdown=False)
    assert "|" not in plain and "0.750 (0.550 to 1.750)" in plain


def test_table_names_another_planning_strategy() -> None:
    row = results.table(document("mg-wfbp"), markdown=False).splitlines()[-1]
    assert row.startswith("libra (plan by mg-wfbp)  ")


def test_table_has_a_row_of_a_plan_without_strategy() -> None:
    of_one_rank = document("libra") | {"plan": {"libra": {"rank": 0}}}
    assert results.table(of_one_rank, markdown=False).splitlines()[-1].startswith("libra  ")
