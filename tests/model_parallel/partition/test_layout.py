"""The tasks of each rank and their order, for pipeline and burst plans."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from tests.model_parallel.job import make_burst_plan, make_plan
from tf_libra.model_parallel.partition.layout import Layout, StageTask

NAMES = ("a", "b", "c", "d")


def test_pipeline_layout_gives_each_rank_one_stage() -> None:
    layout = Layout.from_pipeline_plan(make_plan(NAMES, (0, 3), (2, 1), 2))
    assert layout.starts == (0, 3) and layout.ranks == ((0, 1), (2,))
    assert [layout.rank_stages(rank) for rank in range(3)] == [(0,), (0,), (1,)]
    assert layout.orders[0] == layout.orders[1]
    assert sorted(layout.orders[2]) == sorted(
        StageTask(kind, 1, m) for kind in ("forward", "backward") for m in range(2)
    )


def test_burst_layout_joins_consecutive_layers_on_the_same_ranks() -> None:
    layout = Layout.from_burst_plan(make_burst_plan(NAMES, (2, 2, 1, 2), 2), 3)
    assert layout.starts == (0, 2, 3) and layout.ranks == ((0, 1), (0,), (0, 1))
    assert layout.replica_groups == ((0, 1), (0,))
    kinds = [(task.kind, task.stage) for task in layout.orders[1]]
    assert kinds == [("forward", 0), ("forward", 2), ("backward", 2), ("backward", 0)]
    assert layout.orders[2] == ()


def test_burst_layout_of_all_layers_on_one_rank_runs_the_step_as_a_whole() -> None:
    plan = make_burst_plan(NAMES, (1,), 2)
    assert Layout.from_burst_plan(plan, 3) == Layout.on_one_rank(0, 3)
    other = dataclasses.replace(plan, first_devices=(1,) * len(NAMES))
    assert Layout.from_burst_plan(other, 3) == Layout.on_one_rank(1, 3)
    apart = dataclasses.replace(plan, first_devices=(0,) + (1,) * (len(NAMES) - 1))
    assert not Layout.from_burst_plan(apart, 3).is_whole


@given(st.integers(1, 4), st.integers(1, 60))
def test_layout_for_an_indivisible_batch_has_fewer_microbatches_or_one_stage(
    examples_per_rank: int, multiple: int
) -> None:
    layout = Layout.from_pipeline_plan(make_plan(NAMES, (0, 3), (2, 1), 4))
    fitting = layout.for_batch(examples_per_rank)
    size, rest = divmod(examples_per_rank * 3, fitting.num_microbatches)
    assert not rest and not any(size % len(group) for group in fitting.replica_groups)
    if fitting.replica_groups == layout.replica_groups:
        for order, shorter in zip(layout.orders, fitting.orders, strict=True):
            first_tasks = [task for task in order if task.microbatch < fitting.num_microbatches]
            assert list(shorter) == first_tasks
    else:
        assert examples_per_rank % 2 and fitting.ranks == ((0, 1, 2),)
    assert layout.for_batch(8 * multiple) is layout


@given(st.lists(st.sampled_from([(0,), (0, 1), (2, 3), (0, 1, 2, 3)]), min_size=1, max_size=8))
def test_ranks_execute_their_tasks_in_one_global_order(ranks: list[tuple[int, ...]]) -> None:
    """A sequential execution in the global order exists, so ranks cannot deadlock."""
    layout = Layout.for_layers(ranks, 4)
    tasks = [
        *(StageTask("forward", stage, 0) for stage in range(layout.num_stages)),
        *(StageTask("backward", stage, 0) for stage in reversed(range(layout.num_stages))),
    ]
    for rank, order in enumerate(layout.orders):
        assert list(order) == [task for task in tasks if rank in layout.ranks[task.stage]]
    ranks_by_layer = [
        layout.ranks[max(k for k, start in enumerate(layout.starts) if start <= layer)]
        for layer in range(len(ranks))
    ]
    assert ranks_by_layer == ranks
