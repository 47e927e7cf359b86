"""View of a pipeline."""

import pytest

from tests.reporting.tensorboard import examples
from tf_libra.internal import formatting
from tf_libra.model_parallel.reporting import pipeline_report
from tf_libra.model_parallel.reporting.plan_records import pipeline_view


def test_stage_time_is_that_of_each_replica() -> None:
    """Table, bottleneck sentence and text report agree."""
    record = examples.replicas_record()
    count = len(record.plan.stages[0].devices)
    assert count == 2
    [stage] = pipeline_view(record)["stages"]
    assert stage["forward_seconds"] == pytest.approx(sum(record.layers.forward_seconds) / count)
    assert stage["backward_seconds"] == pytest.approx(sum(record.layers.backward_seconds) / count)
    text = pipeline_report.explained("step", record.plan, record.layers, record.cluster)
    [row] = [line for line in text.splitlines() if line.startswith("    0  ")]
    for kind in ("forward", "backward"):
        assert formatting.time(stage[f"{kind}_seconds"]) in row
