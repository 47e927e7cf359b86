"""Calls under one plan after the other, of a process that is alone."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import tensorflow as tf

from tests.backends.alone import alone
from tests.runtime.alone import INPUTS, NAMES, NUM_BYTES, ONE, TWO, step
from tf_libra import config
from tf_libra.autotune import Phase, PlanSource, TensorSpec, TuningResult
from tf_libra.backends import backend
from tf_libra.backends.engine import Engine, EngineError
from tf_libra.reporting.records import event_reader
from tf_libra.reporting.run_reporter import RunReporter
from tf_libra.runtime import grappler
from tf_libra.runtime.plan_activation import (
    NOT_EXECUTED,
    PlanActivator,
    check_plan_can_run,
    check_plan_fits,
)
from tf_libra.runtime.protocol import TuningState
from tf_libra.runtime.tuning_session import TuningSession
from tf_libra.specs.backward_profile import rows_of
from tf_libra.specs.plan import Plan, TensorGroup


@pytest.fixture
def engine() -> Iterator[Engine]:
    running = alone(num_lanes=3)
    yield running
    running.close()


def executed(engine: Engine) -> list[tuple[int, int, tuple[str, ...]]]:
    return [
        (r.group, r.num_threads, r.tensor_names)
        for r in sorted(engine.drain_telemetry(), key=lambda r: r.sequence)
    ]


def expected(plan: Plan) -> list[tuple[int, int, tuple[str, ...]]]:
    return [
        (index, group.num_threads, NAMES[group.start : group.stop])
        for index, group in enumerate(plan.groups)
    ]


def test_calls_follow_the_plan_that_was_applied_last(
    engine: Engine, activator: PlanActivator
) -> None:
    train = step()
    activator.call(1, lambda: train(INPUTS), traced=False)
    assert [names for _, _, names in executed(engine)] == [(name,) for name in NAMES]
    for number, current in enumerate((ONE, TWO, ONE), start=2):
        activator.activate(current)
        assert (activator.plan, activator.calls_under_plan) == (current, 0)
        for _ in range(2):
            engine.set_step(number)
            result, observation = activator.call(number, lambda: train(INPUTS), traced=False)
            assert result.dtype == tf.float32
            assert observation is None
        assert executed(engine)[-len(current.groups) :] == expected(current)
        assert activator.calls_under_plan == 2
    assert len(grappler.report(ONE).graphs) == 1  # TensorFlow has instantiated it once
    activator.release(all_but=ONE)
    with pytest.raises(ValueError, match="plan"):
        grappler.unregister(TWO)


def test_call_that_fails_does_not_count(engine: Engine, activator: PlanActivator) -> None:
    train = step()

    def fail() -> None:
        train(INPUTS)
        raise RuntimeError("the disk is full")

    activator.activate(ONE)
    with pytest.raises(RuntimeError, match="the disk is full"):
        activator.call(1, fail, traced=False)
    assert activator.calls_under_plan == 0
    activator.call(1, lambda: train(INPUTS), traced=False)
    assert activator.calls_under_plan == 1


def test_first_call_that_fails_without_a_rewritten_graph_is_an_engine_error(
    engine: Engine, activator: PlanActivator
) -> None:
    activator.activate(TWO)

    def fail() -> None:
        raise RuntimeError("the disk is full")

    with pytest.raises(EngineError, match=r"rank 0"):
        activator.call(1, fail, traced=False)


def test_first_call_that_fails_before_its_graph_is_made_leaves_the_profile_to_the_next(
    engine: Engine, activator: PlanActivator
) -> None:
    train = step()
    activator.activate(ONE)

    def fail() -> None:
        raise RuntimeError("the disk is full")

    with pytest.raises(EngineError, match=r"rank 0"):
        activator.call(1, fail, traced=False)
    engine.set_step(1)
    activator.call(1, lambda: train(INPUTS), traced=False)
    engine.set_step(2)
    _, observation = activator.call(2, lambda: train(INPUTS), traced=True)
    assert observation is not None and observation.production is not None, observation


def test_graph_that_has_not_what_the_plan_asks_for_is_warned_about(
    activator: PlanActivator, caplog: pytest.LogCaptureFixture
) -> None:
    activator.activate(TWO)
    with caplog.at_level(logging.INFO, logger="tf_libra"):
        activator.call(1, lambda: tf.constant(1.0), traced=False)
    assert f"{NOT_EXECUTED}: 0 of 4 tensors" in caplog.text


def test_all_reduces_of_tensors_that_the_plan_does_not_have_are_no_deviation_from_it(
    engine: Engine, activator: PlanActivator, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as gradients of averages, which `inner_gradients="average"` asks for."""
    train = step("other")
    with caplog.at_level(logging.INFO, logger="tf_libra"):
        activator.activate(TWO)
        engine.set_step(1)
        activator.call(1, lambda: train(INPUTS), traced=False)
    (skipped,) = grappler.report(TWO).latest.skipped
    assert skipped.startswith("node ")
    assert skipped.endswith(": tensor 'other' is not in the plan")
    assert NOT_EXECUTED not in caplog.text


def test_session_under_a_user_provided_plan_runs_from_its_first_step_on(engine: Engine) -> None:
    train, reporter = step(), RunReporter(config.resolve({}))
    tensors = tuple(TensorSpec(name, NUM_BYTES, "float32") for name in NAMES)
    session = TuningSession("step", engine, config.resolve({}), reporter, tensors, "", TWO)
    assert session.state == TuningState(Phase.RUN, TuningResult(TWO), PlanSource.USER)
    assert not session.settled
    for number in range(1, 8):
        engine.set_step(number)
        session.step(number, lambda: train(INPUTS))
    assert session.settled
    reported = reporter.explain()
    assert "phase: run" in reported
    assert "backward: measured" in reported
    session.close()


@pytest.mark.parametrize("blocked", [False, True], ids=["a folder", "a file"])
def test_recording_schedule_depends_on_the_options_not_on_the_disk(
    engine: Engine, tmp_path: Path, blocked: bool
) -> None:
    """Also where nothing can be written any more: who tells the story decides nothing."""
    if blocked:
        (tmp_path / "log").write_text("a file where a folder should be")
    exported_steps: list[int] = []
    traced: list[int] = []

    class Noting(RunReporter):
        def on_graph(self, step, trace, groups):
            exported_steps.append(step)
            super().on_graph(step, trace, groups)

        def on_step_telemetry(self, step, called_ns, all_reduces, observation=None, *rest, **named):
            traced.extend([step] if observation is not None else [])
            super().on_step_telemetry(step, called_ns, all_reduces, observation, *rest, **named)

    requested = config.resolve({"logdir": tmp_path / "log"})
    train, reporter = step(), Noting(requested)
    reporter.on_join(0, requested)
    reporter.on_function("step")
    tensors = tuple(TensorSpec(name, NUM_BYTES, "float32") for name in NAMES)
    session = TuningSession("step", engine, requested, reporter, tensors, {}, TWO)
    graph = train.get_concrete_function(INPUTS).graph
    for number in range(1, 4):
        engine.set_step(number)
        session.step(number, lambda: train(INPUTS))
        session.record_graph(number, graph)
    reporter.close()
    session.close()
    assert (exported_steps, traced) == ([1], [2, 3])
    files = [event_reader.read(path) for path in tmp_path.glob(event_reader.PATTERN)]
    assert [file.graph_written is not None for file in files] == ([] if blocked else [True])


def test_session_with_nothing_to_plan_runs_as_it_is(engine: Engine) -> None:
    reporter = RunReporter(config.resolve({}))
    session = TuningSession("step", engine, config.resolve({}), reporter, (), "")
    assert session.state == TuningState(Phase.RUN)
    assert session.settled
    assert session.step(1, lambda: "result") == "result"
    assert reporter.explain().startswith("phase: run")


@pytest.mark.parametrize("user_plan", [None, ONE], ids=["as it is", "under a plan"])
def test_the_first_call_of_every_graph_is_no_usual_step(
    engine: Engine, user_plan: Plan | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several steps in one graph are another graph, which TensorFlow traces and instantiates."""
    train, reporter = step(), RunReporter(config.resolve({}))
    reported: list[tuple[int, bool]] = []

    def took(_: int, seconds: float, is_steady: bool, num_steps: int = 1) -> None:
        reported.append((num_steps, is_steady))

    monkeypatch.setattr(reporter, "on_step_end", took)
    tensors = tuple(TensorSpec(name, NUM_BYTES, "float32") for name in NAMES) if user_plan else ()
    session = TuningSession("step", engine, config.resolve({}), reporter, tensors, "", user_plan)
    # Of single steps under a plan the next few are traced.
    for number, num_steps in enumerate([3, 3, 2, 3, 2, 1], start=1):
        engine.set_step(number)
        session.step(number, lambda: train(INPUTS), num_steps)
    assert reported == [(3, False), (3, True), (2, False), (3, True), (2, True), (1, False)]
    session.close()


PLAN = Plan(
    groups=(TensorGroup(0, 1, 3), TensorGroup(1, 3, 1)),
    tensor_names=("b", "w", "v"),
    num_bytes=(8, 40, 4),
    num_workers=2,
    strategy="by hand",
    dtypes=("float64", "float32", "float32"),
)
TENSORS = tuple(
    TensorSpec(name, num_bytes, dtype)
    for name, num_bytes, dtype in zip(PLAN.tensor_names, PLAN.num_bytes, PLAN.dtypes, strict=True)
)
LANES, HOROVOD = (backend.resolve(name) for name in ("lanes", "horovod"))


@pytest.fixture
def two_lanes() -> Iterator[None]:
    engine = alone(num_lanes=2)
    yield
    engine.close()


def test_plan_for_these_workers_and_lanes_can_run(two_lanes: None) -> None:
    narrow = replace(PLAN, groups=(TensorGroup(0, 1, 2), TensorGroup(1, 3, 1)))
    check_plan_can_run(narrow, 2, LANES)
    check_plan_can_run(PLAN, 2, HOROVOD)  # threads are not its lanes


def test_plan_for_others_is_named(two_lanes: None) -> None:
    with pytest.raises(ValueError, match=r"num_workers.*2,.*3 workers"):
        check_plan_can_run(PLAN, 3, LANES)
    with pytest.raises(ValueError, match=r"num_threads.*3,.*2 lanes"):
        check_plan_can_run(PLAN, 2, LANES)


def test_tensors_are_cut_between_elements() -> None:
    groups = (TensorGroup(0, 2, 1, stop_byte=20), TensorGroup(1, 3, 1, start_byte=20))
    plan = replace(PLAN, groups=groups)
    check_plan_fits(plan, TENSORS)
    groups = (TensorGroup(0, 2, 1, stop_byte=18), TensorGroup(1, 3, 1, start_byte=18))
    untold = replace(PLAN, groups=groups, dtypes=None)  # its author does not know the dtypes
    with pytest.raises(ValueError, match=r"groups\[0\].stop_byte.*4.*'w'"):
        check_plan_fits(untold, TENSORS)


def test_rows_have_no_fixed_size() -> None:
    plan = replace(PLAN, dtypes=(rows_of("float64"), *(tensor.dtype for tensor in TENSORS[1:])))
    check_plan_fits(plan, (TensorSpec("b", 0, rows_of("float64")), *TENSORS[1:]))
    with pytest.raises(ValueError, match=r"dtypes has 'float64' for 'b'.*float64 rows"):
        check_plan_fits(PLAN, (TensorSpec("b", 0, rows_of("float64")), *TENSORS[1:]))


def test_order_of_the_tensors_is_the_plans_own() -> None:
    check_plan_fits(PLAN, TENSORS[::-1])
    check_plan_fits(replace(PLAN, dtypes=None), TENSORS)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (TENSORS[1:], "tensor_names has 'b', of which this step computes no gradient"),
        ((*TENSORS, TensorSpec("u", 4, "float32")), "tensor_names lacks 'u'"),
        ((replace(TENSORS[0], num_bytes=16), *TENSORS[1:]), "num_bytes of 'b' is 8, .* has 16"),
        ((replace(TENSORS[0], dtype="int64"), *TENSORS[1:]), "dtypes has 'float64' for 'b'"),
    ],
)
def test_plan_of_another_model_is_named(tensors: tuple[TensorSpec, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_plan_fits(PLAN, tensors)
