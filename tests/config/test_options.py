"""The arguments of `optimize` are checked before anything runs, and without TensorFlow."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tf_libra
from tf_libra import config, strategies
from tf_libra.autotune import Budget
from tf_libra.internal import validation
from tf_libra.specs.plan import Plan, TensorGroup

PLAN = Plan(
    groups=(TensorGroup(0, 1, 1), TensorGroup(1, 2, 3)),
    tensor_names=("b", "w"),
    num_bytes=(4, 40),
    num_workers=2,
    strategy="by hand",
)


def resolved(strategy: Any = "libra", **options: Any) -> config.DataParallelOptions:
    return config.resolve({"strategy": strategy, **options})


def test_defaults() -> None:
    found = resolved()
    assert found.strategy == strategies.Libra()
    assert found.plan is None
    assert found.budget == Budget(60, 30.0, 5)
    assert (
        resolved("auto").budget
        == resolved(strategies.Auto(families=())).budget
        == Budget(80, 40.0, 5)
    )
    assert resolved("auto").trial_budget == Budget(150, 60.0, 5)
    limits = {"max_tuning_steps": 30, "tuning": config.Tuning(max_seconds=6.0)}
    assert resolved("auto", **limits).trial_budget == Budget(30, 6.0)
    assert resolved("auto", **limits).budget == Budget(16, 4.0)
    assert resolved("auto", max_tuning_steps=1).budget.max_steps == 1
    for conflict in ({"engine": "horovod"}, {"local_variables": ["*"]}, {"shard_updates": True}):
        alone = resolved("auto", **conflict, **limits)
        assert alone.family_conflict and alone.budget == alone.trial_budget == Budget(30, 6.0)
        assert resolved("auto", **conflict).budget == Budget(80, 40.0, 5)
    assert resolved(strategies.Auto(families=()), **limits).budget == Budget(30, 6.0)
    assert resolved("aiacc", max_tuning_steps=3).budget == Budget(3, 50.0, 5)
    assert resolved(tuning=config.Tuning(max_seconds=2.5)).budget == Budget(60, 2.5)
    assert found.timeout_seconds == 600
    assert found.num_lanes == 4
    assert found.shard_updates is False


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "fastest"}, "^strategy must .*libra.* got 'fastest'"),
        ({"strategy": 3}, "strategy must be a name or an object"),
        ({"strategy": None}, "strategy must be a name or an object"),
        ({"engine": ["lanes"]}, r"engine must be one of auto, lanes, horovod, got \['lanes'\]"),
        ({"engine": "nccl"}, "engine must be one of auto, lanes, horovod, got 'nccl'"),
        (
            {"check_numerics": "stop"},
            "check_numerics must be one of 'off', 'raise', 'skip', got 'stop'",
        ),
        (
            {"inner_gradients": "both"},
            "inner_gradients must be one of 'reject', 'average', 'local', got 'both'",
        ),
        ({"inner_gradients": np.zeros(2)}, r"inner_gradients must be one of .*, got array"),
        ({"logdir": ""}, "logdir must be a path, got '': None is for none"),
        ({"local_variables": {"a": 1}}, "local_variables must be a sequence"),
        ({"sparse_as_dense": 1}, "sparse_as_dense must be"),
        ({"sparse_as_dense": "row"}, "sparse_as_dense must be"),
        (
            {"broadcast_variables": "yes"},
            "broadcast_variables must be one of 'first_use', 'always', 'never', got 'yes'",
        ),
        ({"broadcast_variables": 1}, "broadcast_variables must be one of .* got 1"),
        ({"local_variables": "data"}, "local_variables must be a sequence .*'data'"),
        ({"local_variables": None}, "local_variables must be a sequence .*None"),
        ({"local_variables": ["data", 3]}, "local_variables must have names.* got 3"),
        ({"local_variables": [""]}, "local_variables must have names.* got ''"),
        ({"wire_dtype": "float8"}, "wire_dtype must be one of bfloat16, float16 or None"),
        ({"wire_dtype": True}, "wire_dtype must be one of"),
        ({"error_feedback": True}, "error_feedback must be False without wire_dtype"),
        ({"error_feedback": 1, "wire_dtype": "float16"}, "error_feedback must be"),
        ({"wire_dtype": "bfloat16", "engine": "horovod"}, "wire_dtype must be None with engine"),
        ({"shard_updates": 1}, "shard_updates must be"),
        ({"shard_updates": "always"}, "shard_updates must be True, False, 'overlap' or 'auto'"),
        ({"shard_updates": True, "engine": "horovod"}, "shard_updates must be False with engine"),
        ({"shard_updates": True, "wire_dtype": "float16"}, "shard_updates must be False with wire"),
        ({"shard_updates": True, "check_numerics": "skip"}, "shard_updates must be False with che"),
        ({"strategy": "dear", "shard_updates": True}, 'shard_updates must be "overlap"'),
        ({"strategy": "dear", "engine": "horovod"}, "shard_updates must be False with engine"),
        ({"strategy": "dear", "wire_dtype": "float16"}, "shard_updates must be False with wire"),
        ({"progress": "bar"}, "progress must be"),
        (
            {"strategy": strategies.Libra(threads=(1, 65))},
            "threads of strategy 'libra' must be between 1 and 64, got 65",
        ),
        ({"timeout_seconds": 0}, "timeout_seconds must be "),
        ({"timeout_seconds": float("nan")}, "timeout_seconds must be "),
        ({"timeout_seconds": float("inf")}, "timeout_seconds must be "),
        ({"timeout_seconds": 1e9}, "timeout_seconds must be at most 1e"),
        ({"timeout_seconds": "10"}, "timeout_seconds must be "),
        ({"max_tuning_steps": 0}, "max_tuning_steps must be from 1 .*got 0"),
        ({"max_tuning_steps": 2.5}, "max_tuning_steps must be an integer"),
        ({"tuning": 60}, "tuning must be a tf_libra.Tuning, got 60"),
        ({"faults": config.Tuning()}, r"faults must be a tf_libra.Faults, got Tuning\("),
    ],
)
def test_names_what_is_wrong(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        resolved(**options)


def test_optimize_checks_immediately() -> None:
    with pytest.raises(ValueError, match=r"^strategy must"):
        tf_libra.optimize("fastest")


def test_optimize_without_a_call_says_how() -> None:
    def step() -> None:
        pass

    with pytest.raises(ValueError, match=r"@tf_libra\.optimize\(\)"):
        tf_libra.optimize(step)  # type: ignore[arg-type]


def test_three_valued_options_are_strings() -> None:
    found = resolved()
    assert found.broadcast_variables == "first_use"
    assert found.inner_gradients == "reject"
    assert found.check_numerics == "off"
    for value, meaning in ((True, "always"), (False, "never"), ("always", "always")):
        assert resolved(broadcast_variables=value).broadcast_variables == meaning
    defaults = {"broadcast_variables": None, "inner_gradients": None, "check_numerics": None}
    assert resolved(**defaults) == found


def test_lanes_are_the_most_threads_of_the_strategy() -> None:
    assert resolved(strategies.Libra(threads=(64,))).num_lanes == 64
    assert resolved(strategies.Wfbp(num_threads=3)).num_lanes == 3


def test_lanes_follow_a_user_provided_plan() -> None:
    assert resolved("libra", plan=PLAN).num_lanes == 3


def test_auto_is_decided_when_the_job_is_known() -> None:
    found = resolved()
    assert found.engine == "auto" and found.is_auto
    assert found.backend.name == "lanes"
    assert not resolved(engine="lanes").is_auto


def test_timeout_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(config.TIMEOUT_VARIABLE, "12.5")
    assert resolved().timeout_seconds == 12.5
    assert resolved(timeout_seconds=3).timeout_seconds == 3
    for text in ("soon", "", "0", "-3", "inf", "nan"):
        monkeypatch.setenv(config.TIMEOUT_VARIABLE, text)
        with pytest.raises(ValueError, match=config.TIMEOUT_VARIABLE):
            resolved()


# Plan files.


def test_plan_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(PLAN.to_json())
    assert resolved(plan=path).plan == PLAN
    assert resolved(plan=str(path)).plan == PLAN
    assert resolved(plan=PLAN).plan == PLAN


def changed(**fields: Any) -> str:
    return json.dumps(json.loads(PLAN.to_json()) | fields)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not valid JSON"),
        ("threads: [1, 2]", "not valid JSON"),
        ("__import__('os').abort()", "not valid JSON"),
        ("\x80\x04N.", "not valid JSON"),
        ("[]", "must be a JSON object"),
        ("[" * 200_000, "nested too deep"),
        ('{"a":' * 100_000, "nested too deep"),
        ("{}", "format must be"),
        (changed(version=2), "version"),
        (changed(groups=[]), "groups"),
        (changed(groups=[{"start": 0, "stop": 2, "num_threads": 0}]), "num_threads"),
        (changed(groups=[{"start": 0, "stop": 1, "num_threads": 1}]), "groups"),
        (changed(groups=[{"start": 0, "stop": 2, "num_threads": 1, "run": "x"}]), "unknown keys"),
        (changed(num_workers="2"), "num_workers"),
        (changed(num_workers=3), "fingerprint"),
        (changed(tensor_names=["b", "b"]), "tensor_names"),
        (changed(num_bytes=[4, -40]), "num_bytes"),
        (changed(num_bytes=[4, 1e400]), "finite"),
        (changed(strategy=None), "strategy"),
    ],
)
def test_malformed_plan_file_is_rejected(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=message) as caught:
        resolved(plan=path)
    assert str(caught.value).startswith(f"plan: {path}")


def test_plan_with_more_threads_than_the_engine_has_is_rejected(tmp_path: Path) -> None:
    plan = Plan(
        groups=(TensorGroup(0, 1, 65),),
        tensor_names=("b",),
        num_bytes=(4,),
        num_workers=2,
        strategy="by hand",
    )
    path = tmp_path / "plan.json"
    path.write_text(plan.to_json())
    with pytest.raises(ValueError, match=r"num_threads.*65;.*64 lanes"):
        resolved(plan=path)


def test_binary_plan_file_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(ValueError, match=r"^plan: .*plan\.json"):
        resolved(plan=path)


def test_missing_plan_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^plan: cannot read .*No such file"):
        resolved(plan=tmp_path / "plan.json")
    with pytest.raises(ValueError, match=r"^plan: .*not a file"):
        resolved(plan=tmp_path)


def test_plan_of_two_streams_runs_on_lanes_alone(tmp_path: Path) -> None:
    groups = (TensorGroup(0, 1, 1), TensorGroup(1, 2, 1, stream=1))
    plan = Plan(
        groups=groups, tensor_names=("a", "b"), num_bytes=(4, 4), num_workers=2, strategy="by hand"
    )
    path = tmp_path / "plan.json"
    path.write_text(plan.to_json())
    with pytest.raises(ValueError, match=r"plan: groups\[1\].stream is 1; .*only 0 is allowed"):
        resolved(plan=path, engine="horovod")
    assert resolved(plan=path).num_lanes == 2


def test_streams_share_the_lanes_that_there_may_be() -> None:
    assert resolved(strategies.AscWfbp(num_threads=3)).num_lanes == 6
    many = strategies.AscWfbp(num_threads=33)
    with pytest.raises(ValueError, match="between 1 and 32 for 2 concurrent all-reduces, got 33"):
        resolved(many)
    for strategy in (strategies.Aiacc(streams=(1, 65)), strategies.Auto(streams=(65,))):
        with pytest.raises(ValueError, match=r"streams.*64,.*65"):
            resolved(strategy)
    assert resolved(many, engine="horovod").strategy == many


def test_plan_that_splits_tensors_is_rejected_if_the_engine_cannot(tmp_path: Path) -> None:
    groups = (TensorGroup(0, 2, 1, stop_byte=4), TensorGroup(1, 2, 1, start_byte=4))
    plan = Plan(
        groups=groups, tensor_names=("a", "b"), num_bytes=(4, 8), num_workers=2, strategy="by hand"
    )
    path = tmp_path / "plan.json"
    path.write_text(plan.to_json())
    with pytest.raises(ValueError, match=r"groups\[0\]"):
        resolved(plan=path, engine="horovod")
    assert resolved(plan=path).plan.cuts_tensors


def test_waits_that_overflow_the_clock_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"timeout_seconds.*1e"):
        resolved(timeout_seconds=1e11)


def test_plan_file_that_is_too_large_is_rejected_unread(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    with path.open("wb") as file:
        os.truncate(file.fileno(), validation.MAX_JSON_CHARACTERS + 1)
    with pytest.raises(ValueError, match=r"plan: .* bytes; at most"):
        resolved(plan=path)


@pytest.mark.parametrize("plan", [3, 2.5, {"groups": []}, b"plan.json\0", "plan\0.json", []])
def test_value_of_another_type_than_a_plan_is_rejected(plan: Any) -> None:
    with pytest.raises(ValueError, match="plan"):
        resolved(plan=plan)


def test_plan_file_that_never_ends_is_rejected() -> None:
    with pytest.raises(ValueError, match="plan"):
        resolved(plan="/dev/zero")


@pytest.mark.parametrize("field", ["logdir", "cache_dir"])
def test_folder_must_be_a_path(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        resolved(**{field: 3})


def test_needs_neither_tensorflow_nor_horovod() -> None:
    program = (
        "import sys; from tf_libra import config, autotune;"
        "print([m for m in ('tensorflow', 'horovod') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_modules_are_there_after_the_import_of_the_package_and_loaded_when_used() -> None:
    program = (
        "import sys, tf_libra; first = {'tensorflow', 'horovod', 'keras'} & {*sys.modules};"
        "names = [tf_libra.elastic.TensorFlowState.__name__, tf_libra.keras.optimize.__module__,"
        " tf_libra.nccl.prepare.__name__, tf_libra.strategies.Libra.__name__];"
        "assert {'elastic', 'keras', 'nccl', 'strategies'} <= {*dir(tf_libra)};"
        "print(first, *names)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [
        "set()",
        "TensorFlowState",
        "tf_libra.keras.fit",
        "prepare",
        "Libra",
    ]


def test_a_lossy_plan_needs_the_option() -> None:
    group = (TensorGroup(0, 1, 1),)
    plan = Plan(group, ("a",), (8,), 2, "by hand", wire_dtype="float16")
    assert resolved(plan=plan, wire_dtype="float16").plan == plan
    for allowed in (None, "bfloat16"):
        with pytest.raises(ValueError, match=r"^wire_dtype must be 'float16'"):
            resolved(plan=plan, wire_dtype=allowed)
