import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tf_libra
from tests.drawing import num_examples
from tests.model_parallel.planning.pipeline import reference
from tf_libra.specs.pipeline import PipelinePlan, PipelineStage

ORDER = (("forward", 0), ("forward", 1), ("backward", 0), ("backward", 1))
FIRST, SECOND = PipelineStage(0, 2, (3,), ORDER), PipelineStage(2, 3, (0, 1), ORDER)


def plan_of(stages=(FIRST, SECOND), **changed):
    fields = {"layer_names": ("a", "b", "c"), "num_devices": 4, "strategy": "by hand"}
    return tf_libra.PipelinePlan(stages, **(fields | changed))


@settings(max_examples=num_examples(100), deadline=None)
@given(
    reference.layer_graphs(),
    reference.clusters(),
    st.sampled_from(["spp", "gpipe", "pipedream", "hetpipe", "data-parallel"]),
    st.integers(1, 12),
)
def test_json_round_trip_is_identical(layers, cluster, strategy, M):
    plan = tf_libra.make_pipeline_plan(layers, cluster, strategy, num_microbatches=M)
    assert plan.num_microbatches == M
    again = tf_libra.PipelinePlan.from_json(plan.to_json())
    assert again == plan
    assert again.fingerprint == plan.fingerprint


def test_json_order_is_text():
    assert '"order": "F0 F1 B0 B1"' in plan_of().to_json()


def test_microbatches_are_stored_as_integers():
    order = [["forward", 0.0], ["backward", np.int64(0)]]
    stage = PipelineStage(0.0, np.int64(3), [np.int32(0)], order)
    assert stage == PipelineStage(0, 3, (0,), (("forward", 0), ("backward", 0)))
    plan = plan_of((stage,))
    assert PipelinePlan.from_json(plan.to_json()) == plan


def test_fingerprint_covers_executed_fields():
    plan = plan_of()
    assert plan_of(predicted_seconds=2.0, notes=("why",)).fingerprint == plan.fingerprint
    in_turn = (ORDER[0], ORDER[2], ORDER[1], ORDER[3])
    for other in (
        plan_of(layer_names=("a", "b", "d")),
        plan_of((PipelineStage(0, 1, (3,), ORDER), PipelineStage(1, 3, (0, 1), ORDER))),
        plan_of((FIRST, PipelineStage(2, 3, (1, 0), ORDER))),
        plan_of((FIRST, PipelineStage(2, 3, (0, 1), in_turn))),
        plan_of(num_devices=5),
    ):
        assert other.fingerprint != plan.fingerprint


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((2, 2, (0,), ORDER), "stop must be from 3"),
        ((-1, 2, (0,), ORDER), "start must be from 0"),
        ((0, 1, (), ORDER), "devices must be at least one, each once"),
        ((0, 1, (2, 2), ORDER), "devices must be at least one, each once"),
        ((0, 1, (-1,), ORDER), r"devices\[0\] must be from 0"),
        ((0, 1, (0,), ()), "order must hold forward and backward of every microbatch once"),
        ((0, 1, (0,), ORDER[:3]), "order must hold forward and backward"),
        ((0, 1, (0,), (*ORDER, ORDER[0])), "order must hold forward and backward"),
        ((0, 1, (0,), (("forward", 0), ("sideways", 0))), "order must hold forward and backward"),
        ((0, 1, (0,), ("forward", "backward")), "order must hold forward and backward"),
        ((0, 1, (0,), (("forward", [0]), ("backward", 0))), "order must hold forward and backward"),
        ((0, 1, (0,), (0, 1)), "order must hold forward and backward"),
        ((0, 1, (0,), ORDER[::-1]), "forward of microbatch 0 before its backward"),
    ],
)
def test_wrong_stage_is_rejected(fields, message):
    with pytest.raises(ValueError, match=message):
        PipelineStage(*fields)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"stages": ()}, "stages must cover 3 layers"),
        ({"stages": (FIRST,)}, "stages must cover 3 layers, at least 1; they cover 2"),
        ({"stages": (SECOND,)}, r"stages\[0\].start must be 0, got 2"),
        ({"layer_names": ("a", "a", "b")}, "layer_names must be unique"),
        ({"num_devices": 3}, r"stages\[0\].devices must be from 0 to 2, got 3"),
        (
            {"stages": (FIRST, PipelineStage(2, 3, (3,), ORDER))},
            r"stages\[1\].devices must be of no other stage, got 3",
        ),
        (
            {"stages": (FIRST, PipelineStage(2, 3, (0,), (ORDER[0], ORDER[2])))},
            r"stages\[1\].order must be of 2 microbatches, as that of stages\[0\], got 1",
        ),
        ({"stages": (FIRST, "x")}, r"stages\[1\] must be a PipelineStage"),
        ({"predicted_seconds": -1.0}, "predicted_seconds must be at least 0"),
    ],
)
def test_wrong_plan_is_rejected(changed, message):
    with pytest.raises(ValueError, match=message):
        plan_of(**changed)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda v: v.update(version=7), "version of tf-libra pipeline plan must be 1, got 7"),
        (lambda v: v["stages"][0].update(devices=[2]), "fingerprint must be that of"),
        (lambda v: v["stages"][1].update(order="F0 X1"), r"stages\[1\]: order must be of words"),
        (lambda v: v["stages"][1].update(order="F0 B"), r"stages\[1\]: order must be of words"),
        (lambda v: v["stages"][0].pop("order"), r"stages\[0\] lacks the keys \['order'\]"),
        (lambda v: v.pop("strategy"), r"lacks the keys \['strategy'\]"),
    ],
)
def test_wrong_json_is_rejected(edit, message):
    value = json.loads(plan_of().to_json())
    edit(value)
    with pytest.raises(ValueError, match=message):
        tf_libra.PipelinePlan.from_json(json.dumps(value))
