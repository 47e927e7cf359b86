"""The tasks of each rank and their order, for plans of all kinds."""

from hypothesis import given
from hypothesis import strategies as st

from tests.model_parallel.job import burst_plan, plan_of
from tf_libra.model_parallel.partition.layout import Layout, StageTask

NAMES = ("a", "b", "c", "d")


def test_a_pipeline_gives_each_rank_one_stage() -> None:
    layout = Layout.of_pipeline(plan_of(NAMES, (0, 3), (2, 1), 2))
    assert layout.starts == (0, 3) and layout.ranks == ((0, 1), (2,))
    assert [layout.stages_of(rank) for rank in range(3)] == [(0,), (0,), (1,)]
    assert layout.orders[0] == layout.orders[1]
    assert sorted(layout.orders[2]) == sorted(
        StageTask(kind, 1, m) for kind in ("forward", "backward") for m in range(2)
    )


def test_layers_that_follow_each_other_on_the_same_ranks_are_a_stage() -> None:
    layout = Layout.of_burst(burst_plan(NAMES, (2, 2, 1, 2), 2), 3)
    assert layout.starts == (0, 2, 3) and layout.ranks == ((0, 1), (0,), (0, 1))
    assert layout.teams == ((0, 1), (0,))
    kinds = [(task.kind, task.stage) for task in layout.orders[1]]
    assert kinds == [("forward", 0), ("forward", 2), ("backward", 2), ("backward", 0)]
    assert layout.orders[2] == ()


@given(st.integers(1, 4), st.integers(1, 60))
def test_a_batch_that_microbatches_do_not_divide_is_laid_out_in_fewer(per_rank, whole) -> None:
    """As the last of an epoch; the order on each rank stays, or all is on all ranks."""
    layout = Layout.of_pipeline(plan_of(NAMES, (0, 3), (2, 1), 4))
    fitting = layout.for_batch(per_rank)
    size, rest = divmod(per_rank * 3, fitting.num_microbatches)
    assert not rest and not any(size % len(team) for team in fitting.teams)
    if fitting.teams == layout.teams:
        for order, shorter in zip(layout.orders, fitting.orders, strict=True):
            few = [task for task in order if task.microbatch < fitting.num_microbatches]
            assert list(shorter) == few
    else:
        assert per_rank % 2 and fitting.ranks == ((0, 1, 2),)
    assert layout.for_batch(8 * whole) is layout


@given(st.lists(st.sampled_from([(0,), (0, 1), (2, 3), (0, 1, 2, 3)]), min_size=1, max_size=8))
def test_all_ranks_come_to_what_they_share_in_the_same_order(ranks) -> None:
    """As if one after the other did the tasks of a single order, in which no one waits for ever."""
    layout = Layout.at_once(ranks, 4)
    whole = [
        *(StageTask("forward", stage, 0) for stage in range(layout.num_stages)),
        *(StageTask("backward", stage, 0) for stage in reversed(range(layout.num_stages))),
    ]
    for rank, order in enumerate(layout.orders):
        assert list(order) == [task for task in whole if rank in layout.ranks[task.stage]]
    stages = [
        layout.ranks[max(k for k, start in enumerate(layout.starts) if start <= layer)]
        for layer in range(len(ranks))
    ]
    assert stages == ranks
