"""`tf_libra.keras`: Keras 3's `fit` on two real workers, against one process."""

import json
import logging
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import tf_libra.keras
from tests.worker_processes import Job, launched, worker_environment
from tf_libra import strategies
from tf_libra.keras import fit
from tf_libra.runtime.plan_activation import NOT_EXECUTED
from tf_libra.specs.plan import Plan

STEPS, EPOCHS = 11, 3


@pytest.fixture(scope="module")
def job(run_job: Callable[..., Job]) -> Job:
    return run_job("keras_fit.py", 2)


def reference(job: Job, case: str) -> Any:
    """Returns what one process alone has trained for a case."""
    return json.loads((job.folder / f"alone.{case}.json").read_text())


def check_weights(job: Job, case: str) -> None:
    job.value(case)
    wanted, first = reference(job, case), job.arrays(case, 0)
    assert len(wanted) == 6
    for rank in range(2):
        arrays = job.arrays(case, rank)
        assert arrays.keys() == wanted.keys()
        for name, value in arrays.items():
            np.testing.assert_allclose(value, wanted[name], rtol=2e-3, atol=2e-5)
            np.testing.assert_array_equal(value, first[name])


@pytest.mark.parametrize(
    "case", ["plain", "short_batch", "own_step", "several_steps", "after_a_reset"]
)
def test_fit_trains_like_one_process_on_the_joint_batches(job: Job, case: str) -> None:
    check_weights(job, case)


def test_step_of_keras_is_traced_once(job: Job) -> None:
    """Slots of the optimizer and variables of metrics are created before it, not in it."""
    for rank in range(2):
        assert job.value("plain", rank)["traces"] == 1


def test_fit_matches_layers_that_one_rank_has_numbered_otherwise(job: Job) -> None:
    case = "numbered_otherwise_on_one_rank"
    check_weights(job, case)
    plans = [Plan.from_json(job.value(case, rank)["plan"]) for rank in range(2)]
    assert plans[0] == plans[1]
    assert len(plans[0].tensor_names) == 6


@pytest.mark.parametrize("case", ["plain", "short_batch", "own_step", "several_steps"])
def test_fit_ends_under_a_plan_that_fits_the_graph(job: Job, case: str) -> None:
    for rank in range(2):
        value = job.value(case, rank)
        assert value["phase"] == "run"
        plan = Plan.from_json(value["plan"])
        assert len(plan.tensor_names) == 6
        assert plan.strategy in strategies.BY_NAME
        assert NOT_EXECUTED not in job.log(case, rank)
    assert plan.strategy in job.value(case)["explained"]


def test_rounding_errors_continue_from_a_checkpoint_before_the_first_fit(job: Job) -> None:
    first = job.arrays("error_feedback", 0)
    for rank in range(2):
        value = job.value("error_feedback", rank)
        assert value["same"] == [True, False]
        assert "lossy" in value["explained"] and "error_feedback" in value["explained"]
        saved = job.arrays("error_feedback", rank)
        assert all(saved[name].tobytes() == first[name].tobytes() for name in first)


def test_steps_of_an_execution_are_one_graph_on_all_ranks_or_on_none(job: Job) -> None:
    assert job.value("short_on_one_rank", 0) == job.value("short_on_one_rank", 1)


def test_callbacks_run_as_often_as_keras_says(job: Job) -> None:
    assert len(job.value("plain")["calls"]) == STEPS * EPOCHS
    assert len(job.value("several_steps")["calls"]) == math.ceil(STEPS / 4) * EPOCHS


@pytest.mark.parametrize("case", ["plain", "several_steps"])
def test_metrics_are_averaged_and_validation_runs(job: Job, case: str) -> None:
    first, second = (job.value(case, rank)["history"] for rank in range(2))
    assert first == second
    assert {"loss", "accuracy", "val_loss", "val_accuracy"} <= first.keys()
    assert len(first["loss"]) == EPOCHS


def test_second_fit_reuses_the_plan_and_compile_measures_again(job: Job) -> None:
    value = job.value("twice")
    assert value["phases"][:3] == ["None", "fit has not been called yet", "run"]
    assert value["kept"]
    assert value["phases"][3] in ("measure", "sample")
    assert job.value("twice", 1)["digest"] == value["digest"]


def test_replaced_step_is_closed(job: Job) -> None:
    for rank in range(2):
        assert job.value("replaced", rank) == [1, 1, 1]
    # Two of three have ended; the last does with the process.
    assert job.log("replaced").count(f": {STEPS} steps, ") == 2


@pytest.mark.parametrize("case", ["on_batch", "before_compile", "odd_batches"])
def test_training_of_other_kinds_is_that_of_one_process(job: Job, case: str) -> None:
    check_weights(job, case)


def test_train_on_batch_goes_on_when_the_plan_is_settled(job: Job) -> None:
    for rank in range(2):
        settled = job.value("on_batch", rank)
        assert not settled[1]
        assert all(settled[-5:])


def test_optimize_waits_for_compile_and_for_the_next(job: Job) -> None:
    for rank in range(2):
        assert job.value("before_compile", rank) == [["run", True, True]] * 2
    assert job.value("odd_batches") is True


RAGGED = tf.ragged.constant([[1.0], [2.0, 3.0]])
SPARSE = tf.sparse.from_dense([[0.0, 1.0]])


@pytest.mark.parametrize(
    ("first", "other", "alike"),
    [
        ((tf.zeros([4, 2]), None), (tf.ones([4, 2]), None), True),
        ((tf.zeros([4, 2]), None), (tf.zeros([4, 2]), tf.zeros([4])), False),
        ((tf.zeros([4, 2]),), (tf.zeros([3, 2]),), False),
        ((tf.zeros([4]),), (tf.zeros([4], tf.float64),), False),
        ({"a": tf.zeros([4]), "b": None}, {"a": tf.ones([4]), "b": None}, True),
        ({"a": tf.zeros([4])}, {"b": tf.zeros([4])}, False),
        ((np.zeros(4), 1.0), (np.ones(4), 2.0), True),
        ((RAGGED,), (RAGGED + 1,), True),
        ((RAGGED,), (tf.ragged.constant([[1.0], [2.0]]),), False),
        ((RAGGED,), (tf.zeros([2, 2]),), False),
        ((SPARSE,), (SPARSE,), True),
        ((SPARSE,), (tf.sparse.from_dense([[1.0, 1.0]]),), False),
    ],
)
def test_batches_are_alike_where_one_trace_fits_both(first: Any, other: Any, alike: bool) -> None:
    assert fit._are_alike((first, first, other)) is alike
    assert fit._are_alike((other, first)) is alike
    assert fit._are_alike((first,))


def test_rank_0_broadcasts_weights_and_optimizer_but_no_seeds(job: Job) -> None:
    for rank in range(2):
        value = job.value("broadcast", rank)
        assert all(value["same"])
        assert value["seeds"] > 0 and value["kept"]
        assert value["at"] == 7 + STEPS


def test_broadcast_of_different_models_is_rejected(job: Job) -> None:
    for rank in range(2):
        error = job.error("models_differ", rank)
        assert "nothing was broadcast" in error
        assert "plain/first/kernel" in error and "own/first/kernel" in error
        assert "'lazy' has no variables yet" in job.error("not_built", rank)


def test_ranks_with_different_metrics_are_named(job: Job) -> None:
    for rank in range(2):
        error = job.error("metrics_differ", rank)
        assert "['accuracy', 'loss', 'mine']" in error
        assert "rank 0" in error and "rank 1" in error


def alone(script: str) -> subprocess.CompletedProcess[str]:
    """Runs a script in a process of its own, as Horovod and devices are set up once per process."""
    return subprocess.run(
        [sys.executable, "-c", script],
        env=worker_environment(),
        capture_output=True,
        text=True,
        timeout=540,
    )


def run_alone(script: str) -> None:
    finished = alone(script)
    assert finished.returncode == 0, finished.stderr


def compiled(**options: object) -> keras.Model:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)], name="small")
    model.compile("sgd", "mse", **options)
    return model


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"run_eagerly": True}, "'small' has run_eagerly=True.*run_eagerly=False"),
        ({"jit_compile": True}, "'small' has jit_compile=True.*jit_compile=False"),
    ],
)
def test_fit_that_no_plan_can_follow_is_rejected(options: dict[str, bool], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tf_libra.keras.optimize(compiled(**options))


def test_training_function_of_the_model_is_not_passed_over() -> None:
    class Own(keras.Sequential):
        def make_train_function(self, force: bool = False) -> None:
            self.train_function = lambda iterator: {"loss": 0.0}

    model = Own([keras.Input((2,)), keras.layers.Dense(1)], name="own")
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"'own' .*make_train_function.*train_step"):
        tf_libra.keras.optimize(model)


def test_line_of_keras_own_bar_is_left_to_it() -> None:
    for options, shown in ({}, False), ({"progress": True}, True):
        fitting = tf_libra.keras.optimize(compiled(), **options)
        assert fitting._decorate.keywords["options"].progress is shown


def test_change_after_optimize_is_rejected_by_fit() -> None:
    model = compiled()
    tf_libra.keras.optimize(model)
    model.compile("sgd", "mse", jit_compile=True)
    with pytest.raises(ValueError, match="jit_compile=True"):
        model.fit(np.zeros((4, 2)), np.zeros((4, 1)), verbose=0)


def test_xla_that_keras_has_switched_on_by_itself_is_switched_off(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(keras.Model, "_resolve_auto_jit_compile", lambda self: True)
    logging.getLogger("tf_libra").addHandler(caplog.handler)
    model = compiled()
    assert model.jit_compile
    try:
        tf_libra.keras.optimize(model)
    finally:
        logging.getLogger("tf_libra").removeHandler(caplog.handler)
    assert not model.jit_compile
    assert "is trained without XLA, which cannot call the all-reduce" in caplog.text


def test_explain_says_why_no_other_family_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_LIBRA_LAUNCHER", "none")  # also if a test has imported Horovod
    for strategy, of_workers in (("auto", True), ("auto", False), ("wfbp", True)):
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        with monkeypatch.context() as patched:
            if of_workers:
                patched.setattr(fit.multi_worker_fit, "is_of_workers", lambda model: True)
                patched.setattr(fit.multi_worker_fit, "prepare", lambda model: None)
            fitting = tf_libra.keras.optimize(model, strategy)
        model.compile("sgd", "mse")
        model.fit(np.zeros((4, 2)), np.zeros((4, 1)), verbose=0)
        is_noted = strategy == "auto" and of_workers
        assert ("MultiWorkerMirroredStrategy" in fitting.explain()) is is_noted


def test_model_that_was_never_compiled_is_keras_to_reject() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    fitting = tf_libra.keras.optimize(model)
    assert not fitting.settled and fitting.tuned is None
    fitting.check_variables()
    fitting.close()
    with pytest.raises(ValueError, match="compile"):
        model.fit(np.zeros((4, 2)), np.zeros((4, 1)), verbose=0)


@pytest.mark.workers
def test_model_under_a_distribution_strategy_is_rejected() -> None:
    script = """
import keras, tensorflow as tf, tf_libra.keras
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
assert strategy.num_replicas_in_sync == 2
with strategy.scope():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
tf_libra.keras.optimize(model)
"""
    finished = alone(script)
    assert finished.returncode == 1
    assert "was made under MirroredStrategy, which averages gradients" in finished.stderr


def test_object_that_is_no_keras_model_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"Keras 3 .*got int$"):
        tf_libra.keras.optimize(3)
    with pytest.raises(ValueError, match=r"Sequential.*tf_keras;"):
        tf_libra.keras.optimize(tf_keras.Sequential())
    with pytest.raises(ValueError, match="strategy must be one of"):
        tf_libra.keras.optimize(compiled(), "horowod")


@pytest.mark.workers
def test_one_process_trains_as_without() -> None:
    run_alone("""
import horovod.tensorflow as hvd, keras, numpy as np, tensorflow as tf, tf_libra.keras
hvd.init()
def compiled(**options):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", **options)
    return model
inputs = np.random.default_rng(0).normal(size=(8, 2))
labels = inputs.sum(axis=1, keepdims=True)
plain, optimized = compiled(), compiled(steps_per_execution=2)
optimized.set_weights(plain.get_weights())
before = plain.get_weights()
fitting = tf_libra.keras.optimize(optimized)
for model in (plain, optimized):
    model.fit(inputs, labels, batch_size=2, epochs=2, shuffle=False, verbose=0)
for start, one, other in zip(before, plain.get_weights(), optimized.get_weights(), strict=True):
    assert not np.allclose(start, one)
    np.testing.assert_allclose(one, other, rtol=1e-6)
assert str(fitting.phase) == "pass-through", fitting.phase

# The end of data of unknown length is no step: no iteration of a schedule, and no weight decay.
def decayed():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    rates = keras.optimizers.schedules.CosineDecay(0.1, 10)
    model.compile(keras.optimizers.AdamW(rates, weight_decay=0.1), "mse")
    return model
plain, optimized = decayed(), decayed()
optimized.set_weights(plain.get_weights())
tf_libra.keras.optimize(optimized)
data = tf.data.Dataset.from_tensor_slices((inputs, labels)).batch(2).filter(lambda *batch: True)
plain.fit(data.repeat(), steps_per_epoch=4, epochs=3, verbose=0)
optimized.fit(data, epochs=3, verbose=0)
assert int(plain.optimizer.iterations) == int(optimized.optimizer.iterations) == 12
for one, other in zip(plain.get_weights(), optimized.get_weights(), strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-6)
""")


def test_example_trains(run_job: Callable[..., Job]) -> None:
    example = Path(__file__).resolve().parents[2] / "examples" / "keras_digits.py"
    output = run_job(str(example), 2, "--epochs=2", launcher=launched).output(0)
    assert "val_accuracy" in output
    phases = ("sample", "race", "run")
    assert any(f"phase: {phase}" in output for phase in phases)


@pytest.mark.parametrize("rank", range(2))
@pytest.mark.parametrize("phase", ["tuning", "plan"])
@pytest.mark.parametrize("short", range(2))
def test_rank_with_fewer_batches_is_named_by_all(
    job: Job, short: int, phase: str, rank: int
) -> None:
    kind, message = job.value("fewer_batches", rank)[f"{short} {phase}"]
    assert kind == "HorovodInternalError"
    assert f"the end of an epoch, after {STEPS - 1} optimizer steps, AverageMetrics" in message
    assert f"rank {short}" in message
    assert "waited" not in message  # for the timeout
    if rank == short:
        assert "equally many batches" in message
    else:
        assert f"step {STEPS}" in message


@pytest.mark.parametrize("rank", range(2))
@pytest.mark.parametrize("broadcasting", range(2))
def test_rank_that_broadcasts_while_another_trains_is_named(
    job: Job, broadcasting: int, rank: int
) -> None:
    kind, message = job.value("one_rank_broadcasts", rank)[str(broadcasting)]
    assert kind == "HorovodInternalError"
    assert "the beginning of fit, BroadcastVariables" in message
    assert "waited" not in message
