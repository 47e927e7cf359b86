"""View of every strategy on the profile of a plan."""

from dataclasses import replace

import pytest

from tests.reporting.tensorboard import examples
from tf_libra import strategies
from tf_libra.reporting.tensorboard.views.strategies import (
    SCALE_OUT,
    compared_strategies,
    scale_out,
    strategies_view,
    strategy_like,
)
from tf_libra.reporting.tensorboard.views.timeline import predicted_timeline

RECORD = examples.plan_record()


@pytest.mark.parametrize(
    "own",
    [
        strategies.Libra(threads=(1, 2), max_groups=3, chunks=40, exact=True),
        strategies.LibraM(threads=(1, 2), chunks=40, num_threads=2),
        strategies.AscWfbp(num_threads=2, contention=1.25),
        strategies.HorovodFusion(num_threads=2, cycle_seconds=0.005, buffer_bytes=1 << 20),
    ],
    ids=lambda own: own.name,
)
def test_requested_strategy_has_all_of_its_arguments(own: strategies.Strategy) -> None:
    record = examples.given_record(RECORD.plan, own)
    assert strategy_like(record, own.name) == own
    names = {
        compared_strategy["name"]
        for compared_strategy in compared_strategies(replace(RECORD, strategy=own))
    }
    assert names == set(strategies.BY_NAME) - {"auto"} | {"mg-cf"}


def test_registered_strategy_is_compared() -> None:
    with examples.halves() as halves:
        [reported] = [
            compared_strategy
            for compared_strategy in compared_strategies(RECORD)
            if compared_strategy["name"] == halves.name
        ]
        assert reported == {"name": halves.name, "chooses_threads": False, "is_ideal": False}
        rows = strategies_view(RECORD, name=halves.name)["rows"]
        assert [row["num_threads"] for row in rows] == list(RECORD.threads)
        like = strategy_like(RECORD, halves.name, 2)
        # LIBRA's argument of that name, as every strategy that knows it has it.
        assert like == halves(num_threads=2, max_groups=RECORD.strategy.max_groups)
        timeline = predicted_timeline(RECORD, like)
        assert {span["num_threads"] for span in timeline["spans"]} == {2}
    assert halves.name not in {
        compared_strategy["name"] for compared_strategy in compared_strategies(RECORD)
    }


def test_requested_registered_strategy_shares_its_arguments() -> None:
    with examples.halves() as halves:
        record = examples.plan_record(strategy=halves(num_threads=4, max_groups=3))
        assert strategy_like(record, halves.name) == record.strategy
        libra = strategy_like(record, "libra")
        assert (libra.max_groups, libra.threads) == (3, (4,))
        assert strategy_like(record, "wfbp", 4) == strategies.Wfbp(num_threads=4)


@pytest.mark.parametrize("workers", SCALE_OUT)
def test_scale_out_begins_at_the_world_size_of_the_plan(workers: int) -> None:
    assert (workers in scale_out(RECORD)) == (workers >= RECORD.plan.num_workers)
    assert strategies_view(RECORD, workers, "wfbp")["num_workers"] == workers


def test_other_world_sizes_are_errors() -> None:
    with pytest.raises(ValueError, match=r"workers.*2, 4,.*3"):
        strategies_view(RECORD, 3)
    assert scale_out(examples.given_record(RECORD.plan, RECORD.strategy)) == []
