import dataclasses
import json
import subprocess
import sys
from typing import ClassVar

import numpy as np
import pytest

import tf_libra
from tf_libra import strategies
from tf_libra.model_parallel.commands.pipeline import main
from tf_libra.model_parallel.planning import pipeline
from tf_libra.model_parallel.planning.pipeline import BY_NAME
from tf_libra.model_parallel.planning.pipeline.planner import compare
from tf_libra.model_parallel.planning.pipeline.spp import execution_orders
from tf_libra.model_parallel.planning.pipeline.strategy import REGISTRY
from tf_libra.specs.pipeline import PipelineStage

LAYERS = tf_libra.LayerGraph.chain([1, 2, 1], [2, 2, 1], [10, 20, 5], [3, 3])
CLUSTER = tf_libra.Cluster.from_bandwidth([[0, 5], [5, 0]])
NAMES = ("spp", "gpipe", "pipedream", "hetpipe", "data-parallel")


def test_all_are_known_by_name():
    assert set(NAMES) <= set(pipeline.BY_NAME)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_the_strategy_with_its_defaults(name):
    by_name = tf_libra.make_pipeline_plan(LAYERS, CLUSTER, name, num_microbatches=4)
    strategy = pipeline.BY_NAME[name](num_microbatches=4)
    assert tf_libra.make_pipeline_plan(LAYERS, CLUSTER, strategy) == by_name
    assert by_name.strategy == name
    # The argument of the call overrides the strategy's.
    other = pipeline.BY_NAME[name](num_microbatches=9)
    assert tf_libra.make_pipeline_plan(LAYERS, CLUSTER, other, num_microbatches=4) == by_name


def test_they_stand_among_the_strategies():
    plan = tf_libra.make_pipeline_plan(LAYERS, CLUSTER, strategies.Spp(num_microbatches=2))
    assert plan.num_microbatches == 2


def test_a_planner_from_outside(tmp_path, capsys):
    @pipeline.register
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class LastDevice(pipeline.PipelineStrategyBase):
        name: ClassVar[str] = "last-device"
        place: int = -1

        def draft(self, layers, cluster, num_microbatches):
            (order,) = execution_orders(1, num_microbatches)
            device = range(cluster.num_devices)[self.place]
            stage = PipelineStage(0, len(layers.layers), (device,), order)
            return pipeline.PipelineDraft((stage,), notes=("a toy",))

    try:
        plan = tf_libra.make_pipeline_plan(LAYERS, CLUSTER, "last-device", num_microbatches=3)
        assert plan.stages[0].devices == (1,)
        assert plan.notes == ("a toy",)
        assert plan.predicted_seconds == 27
        own = LastDevice(num_microbatches=3)
        [same] = pipeline.make_pipeline_plans(LAYERS, CLUSTER, own)
        assert same == plan
        (tmp_path / "layers.json").write_text(LAYERS.to_json())
        (tmp_path / "cluster.json").write_text(CLUSTER.to_json())
        inputs = [f"--layers={tmp_path}/layers.json", f"--cluster={tmp_path}/cluster.json"]
        inputs.append("--num_microbatches=3")
        assert main(["plan", *inputs, "--strategy=last-device", "--place=0"]) == 0
        assert tf_libra.PipelinePlan.from_json(capsys.readouterr().out).stages[0].devices == (0,)
        assert main(["compare", *inputs, "--json"]) == 0
        rows = {row["plan"]: row for row in json.loads(capsys.readouterr().out)}
        assert rows["last-device"]["iteration_seconds"] == 27
        spp = dataclasses.make_dataclass(
            "Other", [], bases=(LastDevice,), namespace={"name": "spp"}, frozen=True
        )
        with pytest.raises(ValueError, match=r"name.*'spp'"):
            pipeline.register(spp)
    finally:
        REGISTRY.forget("last-device")


def test_memory_is_checked_and_may_differ_between_ranks():
    with pytest.raises(ValueError, match="memory_bytes must be"):
        strategies.Spp(memory_bytes=0)
    small, released = strategies.Spp(memory_bytes=5.0), strategies.Spp(release_variables=True)
    assert repr(small) == repr(strategies.Spp())  # ranks compare strategies by their `repr`
    assert repr(released) != repr(strategies.Spp())


def test_invalid_registration_is_named():
    with pytest.raises(ValueError, match="must be a frozen dataclass"):
        pipeline.register(type("Plain", (), {"name": "plain"}))
    with pytest.raises(ValueError, match="name must be a text"):
        pipeline.register(dataclasses.make_dataclass("Nameless", [], frozen=True))
    bare = dataclasses.make_dataclass("Bare", [], namespace={"name": "bare"}, frozen=True)
    with pytest.raises(ValueError, match=r"must have .*draft.* inherit .*PipelineStrategyBase"):
        pipeline.register(bare)


@pytest.mark.parametrize(
    ("strategy", "microbatches", "message"),
    [
        ("dapple", 2, "strategy must be one of .*spp.* got 'dapple'"),
        (object(), 2, "strategy must be a name or an object of a pipeline strategy"),
        (strategies.Spp, 2, "strategy must be a name or an object"),
        ("spp", None, "num_microbatches must be given"),
        ("spp", 0, "num_microbatches must be from 1 .* got 0"),
        ("spp", -3, "num_microbatches must be from 1 .* got -3"),
        ("spp", 1.5, "num_microbatches must be an integer, got 1.5"),
        ("spp", 1 << 20, "num_microbatches must be from 1 to 16384, got 1048576"),
    ],
)
def test_bad_arguments_are_rejected(strategy, microbatches, message):
    with pytest.raises(ValueError, match=message):
        tf_libra.make_pipeline_plan(LAYERS, CLUSTER, strategy, num_microbatches=microbatches)


def test_bad_arguments_of_strategies_are_rejected():
    with pytest.raises(ValueError, match=r"num_microbatches must be from 1 .* got 0"):
        strategies.Spp(num_microbatches=0)
    with pytest.raises(ValueError, match=r"num_microbatches must be from 1 .* got 0"):
        strategies.HetPipe(num_microbatches=0)
    for kind in (strategies.Spp, strategies.GPipe):
        with pytest.raises(ValueError, match=r"num_stages.*'2'"):
            kind(num_stages="2")
        with pytest.raises(ValueError, match=r"num_stages must be from 1 .* got 0"):
            kind(num_stages=0)
        assert kind(num_stages=np.float64(2)) == kind(num_stages=2)


@pytest.mark.parametrize("given", [{"layers": [1.0]}, {"cluster": CLUSTER.rates}])
def test_argument_of_another_type_is_named(given):
    arguments = {"layers": LAYERS, "cluster": CLUSTER} | given
    (field,) = given
    with pytest.raises(ValueError, match=f"{field} must be a "):
        tf_libra.make_pipeline_plan(**arguments, strategy="spp", num_microbatches=2)
    plan = tf_libra.make_pipeline_plan(LAYERS, CLUSTER, "spp", num_microbatches=2)
    with pytest.raises(ValueError, match=f"{field} must be a "):
        tf_libra.simulate_pipeline(plan=plan, **arguments)
    with pytest.raises(ValueError, match=r"plan.*PipelinePlan,"):
        tf_libra.simulate_pipeline(LAYERS, "spp", CLUSTER)


@pytest.mark.parametrize("name", NAMES)
def test_a_cluster_without_a_link_that_is_needed(name):
    cluster = tf_libra.Cluster.from_bandwidth(np.zeros((2, 2)))
    with pytest.raises(ValueError, match="bytes_per_second of cluster must"):
        tf_libra.make_pipeline_plan(LAYERS, cluster, name, num_microbatches=2)


def test_planning_needs_neither_tensorflow_nor_horovod():
    code = """
import sys
sys.modules["tensorflow"] = sys.modules["horovod"] = None
import tf_libra
layers = tf_libra.LayerGraph.chain([1, 1], [1, 1], [1, 1], [1])
cluster = tf_libra.Cluster.from_bandwidth([[0, 1], [1, 0]])
plan = tf_libra.make_pipeline_plan(layers, cluster, "spp", num_microbatches=2)
tf_libra.simulate_pipeline(layers, plan, cluster)
tf_libra.PipelinePlan.from_json(plan.to_json())
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_rows_are_what_each_plans() -> None:
    rows = compare(LAYERS, CLUSTER, {name: kind() for name, kind in BY_NAME.items()}, 4)
    assert [row.name for row in rows] == list(BY_NAME)
    for row in rows:
        plan = tf_libra.make_pipeline_plan(LAYERS, CLUSTER, row.name, num_microbatches=4)
        assert row.plan == plan and not row.problem
        assert row.timeline.iteration_seconds == plan.predicted_seconds


def test_strategy_without_a_plan_has_a_reason_and_none_at_all_raises() -> None:
    """A row of devices has no all-reduce over all devices."""
    row = tf_libra.Cluster.from_bandwidth(np.eye(3, k=1) + np.eye(3, k=-1))
    kinds = {name: BY_NAME[name]() for name in ("data-parallel", "gpipe")}
    first, second = compare(LAYERS, row, kinds, 4)
    assert first.plan is None and first.timeline is None
    assert "bytes_per_second of cluster must" in first.problem
    assert second.plan is not None
    apart = tf_libra.Cluster.from_bandwidth(np.zeros((2, 2)))
    with pytest.raises(ValueError, match="bytes_per_second of cluster must"):
        compare(LAYERS, apart, {name: kind() for name, kind in BY_NAME.items()}, 4)


def test_arguments_that_allow_no_plan_are_rejected() -> None:
    """The error also appears if other strategies have a plan."""
    both = {"spp": strategies.Spp(), "few": strategies.GPipe(num_stages=3)}
    with pytest.raises(ValueError, match=r"num_stages.*2"):
        compare(LAYERS, CLUSTER, both, 4)
    with pytest.raises(ValueError, match="num_microbatches must be from 1"):
        compare(LAYERS, CLUSTER, both, 0)
