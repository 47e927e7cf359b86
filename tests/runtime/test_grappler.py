"""Active plans: in the graph after optimisation, and in what was executed."""

from pathlib import Path

import numpy as np
import pytest

from tests.worker_processes import Job
from tf_libra.runtime import grappler
from tf_libra.specs.plan import Plan

CONFIGURED = [
    "another_batch_size",
    "after_backward",
    "sparse_gradients",
    "mixed_dtypes",
    "two_updates_in_one_step",
    "loop_inside_of_the_step",
    "nested_function",
    "two_decorated_functions",
]


def groups_of(plan: Plan) -> list[tuple[int, int, list[str]]]:
    return [
        (index, group.num_threads, list(plan.tensor_names[group.start : group.stop]))
        for index, group in enumerate(plan.groups)
    ]


def test_executed_graph_holds_the_plan_with_its_control_edges(
    plans: Job, three_groups: Plan
) -> None:
    graph = plans.value("three_groups", rank=1)["graph"]
    found = [(group["group"], group["num_threads"], group["tensor_names"]) for group in graph]
    assert found == groups_of(three_groups)
    assert [group["after_groups"] for group in graph] == [[], [0], [1]]


def test_telemetry_holds_the_plan(plans: Job, three_groups: Plan) -> None:
    value = plans.value("three_groups", rank=1)
    for step in (2, 3, 4, 5):
        records = [r for r in value["telemetry"] if r["step"] == step]
        found = [(r["group"], r["num_threads"], r["tensor_names"]) for r in records]
        assert found == groups_of(three_groups), step
        assert {r["plan"] for r in records} == {value["plan_id"]}
        assert sum(r["num_bytes"] for r in records) == sum(three_groups.num_bytes)


@pytest.mark.parametrize("rank", [0, 1])
def test_pass_reports_what_it_did(plans: Job, three_groups: Plan, rank: int) -> None:
    value = plans.value("three_groups", rank)
    assert [tuple(group) for group in value["report"]] == groups_of(three_groups)
    assert value["skipped"] == []
    assert value["phases"] == ["run"]


@pytest.mark.parametrize("rank", [0, 1])
def test_second_plan_takes_effect_without_retracing(plans: Job, rank: int) -> None:
    value = plans.value("second_plan", rank)
    assert value["traces"] == 1
    first, second = value["plans"]
    names = ["b2", "w2", "b1", "w1", "b0", "w0"]
    for plan, step, expected in (
        (first, 0, [(1, names[:3]), (3, names[3:])]),
        (second, 1, [(2, names[:1]), (1, names[1:4]), (2, names[4:])]),
    ):
        assert [(r["num_threads"], r["tensor_names"]) for r in plan["telemetry"]] == expected
        assert {(r["plan"], r["step"]) for r in plan["telemetry"]} == {(plan["id"], step)}


def test_plan_stays_active_when_another_batch_size_retraces(plans: Job, three_groups: Plan) -> None:
    records = plans.value("another_batch_size", rank=1)["telemetry"]
    found = [(r["group"], r["num_threads"], r["tensor_names"]) for r in records]
    assert found == groups_of(three_groups)


def test_group_of_several_dtypes_is_all_reduced_dtype_by_dtype(plans: Job) -> None:
    records = plans.value("mixed_dtypes", rank=1)
    found = [(r["group"], r["num_threads"], r["tensor_names"]) for r in records]
    assert sorted(found) == sorted(
        [(0, 2, ["m4"]), (0, 2, ["m3"]), (0, 2, ["m2"]), (1, 1, ["m1"]), (1, 1, ["m0"])]
    )
    assert [group for group, _, _ in found] == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("case", CONFIGURED)
def test_trains_as_one_process_does(plans: Job, case: str) -> None:
    saved = plans.arrays(case)
    ours = {name: value for name, value in saved.items() if name.startswith("ours/")}
    assert ours
    for name, value in ours.items():
        tolerance = {
            "float16": {"rtol": 1e-2, "atol": 1e-3},
            "float32": {"rtol": 1e-3, "atol": 1e-4}
            if case == "mixed_dtypes"  # float16 in between
            else {"rtol": 1e-5, "atol": 1e-7},
            "float64": {"rtol": 1e-2, "atol": 1e-3}
            if case == "mixed_dtypes"
            else {"rtol": 1e-9, "atol": 1e-12},
        }[value.dtype.name]
        alone = saved[name.replace("ours/", "alone/", 1)]
        np.testing.assert_allclose(value, alone, **tolerance, err_msg=name)


@pytest.mark.parametrize(
    "case", [*CONFIGURED, "three_groups", "another_batch_size_on_one_rank", "decorated_method"]
)
def test_every_rank_ends_with_the_same_bits(plans: Job, case: str) -> None:
    first, second = plans.arrays(case, 0), plans.arrays(case, 1)
    for name, value in first.items():
        if not name.startswith("alone/"):
            assert value.tobytes() == second[name].tobytes(), name


@pytest.mark.parametrize("case", ["two_updates_in_one_step", "loop_inside_of_the_step"])
def test_plan_is_made_where_a_step_updates_several_times(plans: Job, case: str) -> None:
    assert plans.value(case) == "run"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit", True),
        ("--tf_xla_cpu_global_jit --tf_xla_auto_jit=fusible", True),
        ("--tf_xla_auto_jit=0", False),
        ("--tf_xla_auto_jit=-1 --tf_xla_clustering_debug", False),
        ("--tf_xla_enable_xla_devices", False),
        ("", False),
    ],
)
@pytest.mark.parametrize("in_file", [False, True])
def test_flags_of_auto_clustering(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flags: str, expected: bool, in_file: bool
) -> None:
    if in_file:  # which TensorFlow reads where the variable begins with no dash
        (tmp_path / "flags").write_text(flags)
        flags = str(tmp_path / "flags")
    monkeypatch.setenv("TF_XLA_FLAGS", flags)
    assert grappler.is_clustered_by_xla() is expected
