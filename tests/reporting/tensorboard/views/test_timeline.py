"""Timelines of plans and of steps."""

from dataclasses import replace

from tests.reporting.tensorboard import examples
from tf_libra.reporting.tensorboard.views.timeline import measured_timeline

RECORD = examples.plan_record()


def test_an_all_reduce_outside_of_the_plan_is_none_of_its_groups() -> None:
    measured = examples.timeline_record(RECORD)
    alone = replace(measured.spans[0], group=-1)
    shown = measured_timeline(RECORD, replace(measured, spans=(alone, *measured.spans)))
    first, *groups = shown["spans"]
    assert (first["group"], first["start"], first["stop"], first["stream"]) == (-1, None, None, 0)
    assert [one["start"] for one in groups] == [group.start for group in RECORD.plan.groups]
