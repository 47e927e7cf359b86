"""Bursts in words: whole, and in lines that fit."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.reporting.tensorboard import examples
from tf_libra.internal import formatting
from tf_libra.model_parallel.execution.stage_executor import TaskSpan
from tf_libra.model_parallel.profiling.step_measurement import MeasuredLayers
from tf_libra.model_parallel.reporting.burst_report import describe_measured, explained, in_a_line
from tf_libra.planning.one_worker import OneWorkerComparison

LONG = tuple(f"a_scope_that_all_layers_are_in/another/block_{i}/kernel" for i in range(5))
NOTE = " ".join(f"word{i}" for i in range(60))
NOTHING: Any = SimpleNamespace(task_spans=())


def words(text: str) -> str:
    """Without what puts it into lines and columns."""
    return "".join(text.split())


@pytest.mark.parametrize("is_measured", [False, True])
@pytest.mark.parametrize(("names", "ranks"), [((), 2), (LONG, 2), (LONG, 16)])
def test_lines_fit_and_nothing_is_left_out_for_it(names, ranks, is_measured) -> None:
    record = examples.burst_record(names=names, ranks=ranks)
    plan = replace(record.plan, notes=(NOTE,))
    measured = MeasuredLayers(record.bars, record.seconds) if is_measured else None
    text = explained("train_step", plan, NOTHING, measured)
    assert max(map(len, text.splitlines())) <= 100
    for reported in (NOTE, *plan.layer_names):
        assert words(reported) in words(text)
    rows = text.splitlines()
    head = next(number for number, line in enumerate(rows) if line.startswith("ranks "))
    counts = [int(row.split()[0]) for row in rows[head + 1 : rows.index("", head)] if "#" in row]
    assert counts == list(plan.num_devices)
    assert ("measured" in text) == is_measured
    assert "amplification at most 1.5" in rows[0]


def test_comparison_with_one_worker_comes_first() -> None:
    plan, compared = examples.burst_record().plan, OneWorkerComparison(2, 0.067, 0.059)
    text = explained("step", plan, NOTHING, compared=compared)
    assert text.splitlines()[1].startswith("one worker: ")
    assert words(compared.describe()) in words(text)
    assert max(map(len, text.splitlines())) <= 100


def test_the_line_names_stages_with_their_ranks() -> None:
    plan = examples.burst_record().plan
    assert plan.num_devices == (2, 2, 1, 2, 2)
    assert in_a_line(plan) == (
        f"predicted {formatting.time(plan.iteration_seconds)}: block_0 to block_1 on ranks 0 to 1;"
        " block_2 on rank 0; block_3 to block_4 on ranks 0 to 1"
    )
    moved = replace(plan, first_devices=(0, 0, 1, 0, 0))
    assert "block_2 on rank 1;" in in_a_line(moved)
    assert "from rank 1 on: block_2" in explained("step", moved, NOTHING)
    assert describe_measured(plan, MeasuredLayers((), 2.0)).startswith(
        "an iteration takes 2 s; predicted: "
    )


def test_report_shows_the_last_step_of_this_rank() -> None:
    plan = replace(examples.burst_record().plan, max_amplification=None)
    assert "this rank has no layer" in explained("step", plan, NOTHING)
    did: Any = SimpleNamespace(
        task_spans=(
            TaskSpan("forward", 0, 1.0, 1.5),
            TaskSpan("forward", 0, 2.0, 2.25, 2),
            TaskSpan("backward", 0, 3.0, 4.0),
        )
    )
    text = explained("step", plan, did)
    assert "this rank computed 1.75 s of the 4 s until its last layer" in text
    assert "without a limit on amplification" in text and "has no layer" not in text
