"""The work of devices under a burst plan, and their idle times."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.drawing import num_examples
from tests.reporting.tensorboard import examples
from tf_libra.model_parallel.simulation.burst_gantt import layers_of, named, pictures, stages_of
from tf_libra.model_parallel.simulation.pipeline_gantt import Bar

PLAN = examples.burst_record().plan


def test_layers_that_follow_each_other_on_the_same_devices_are_a_stage():
    assert PLAN.num_devices == (2, 2, 1, 2, 2)
    stages = stages_of(PLAN)
    assert [(stage.start, stage.stop, stage.num_devices) for stage in stages] == [
        (0, 2, 2), (2, 3, 1), (3, 5, 2)
    ]  # fmt: skip
    assert [named(PLAN, stage) for stage in stages] == [
        "block_0 to block_1", "block_2", "block_3 to block_4"
    ]  # fmt: skip


def test_predicted_background_leaves_the_gaps_of_the_plan():
    [predicted] = pictures(PLAN)
    assert predicted.idle_seconds == PLAN.idle_seconds
    for device, gaps in enumerate(PLAN.gaps):
        own = [bar for bar in predicted.bars if bar.device == device]
        busy = sum(bar.stop_seconds - bar.start_seconds for bar in own)
        idle = sum(stop - start for start, stop in gaps)
        assert busy + idle == pytest.approx(PLAN.iteration_seconds)
    for kind, field in (("compute", "computes"), ("transition", "comes_in")):
        took = sum(getattr(layer, field) * layer.num_devices for layer in layers_of(PLAN))
        drawn = [bar for bar in predicted.bars if bar.kind == kind]
        assert sum(bar.stop_seconds - bar.start_seconds for bar in drawn) == pytest.approx(took)


@settings(max_examples=num_examples(100), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 20)), max_size=8),
    st.integers(0, 50),
)
def test_idle_is_what_no_bar_covers(given_bars, end):
    """In units of time, also where bars overlap, or end after the iteration."""
    bars = [
        Bar(device, "forward", 0, 0, float(start), float(start + length))
        for device, start, length in given_bars
    ]
    measured, _ = pictures(PLAN, (bars, float(end)))
    for device, idle in enumerate(measured.idle_seconds):
        covered = {
            unit
            for which, start, length in given_bars
            if which == device
            for unit in range(start, start + length)
        }
        assert idle == pytest.approx(end - len(covered & set(range(end))))
