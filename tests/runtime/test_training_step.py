"""A decorated function before it has met other ranks; what follows is in jobs' tests."""

import copy
import dataclasses
from collections.abc import Iterator
from unittest import mock

import pytest
import tensorflow as tf
from tensorflow.python.autograph.impl.api import is_autograph_artifact

import tf_libra
from tests.worker_processes import Job
from tf_libra import config
from tf_libra.autotune import Phase
from tf_libra.internal.process_state import STATE
from tf_libra.runtime.protocol import TuningState
from tf_libra.runtime.training_step import TrainingFunction


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    STATE.reset()
    yield
    STATE.reset()


def step(inputs: tf.Tensor) -> tf.Tensor:
    return 2 * inputs


def training() -> TrainingFunction:
    return TrainingFunction(step, config.resolve({}))


def test_before_the_first_step_nothing_is_known() -> None:
    training_step = training()
    assert training_step.state == TuningState(Phase.TRACE)
    assert not training_step.settled
    assert training_step.explain() == "phase: trace"
    training_step.check_variables()  # there is nothing to compare, and no other rank
    training_step.close()
    assert training_step.state == TuningState(Phase.TRACE)


def test_step_before_horovod_knows_the_job_is_rejected_every_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TF_LIBRA_LAUNCHER", "horovod")
    training_step = training()
    for _ in range(2):
        with pytest.raises(ValueError, match=r"call hvd\.init\(\)"):
            training_step.step((tf.constant(1.0),), {})
    assert training_step.state.phase is Phase.TRACE


def test_call_from_inside_of_another_function_is_rejected() -> None:
    training_step = training()
    outer = tf.function(lambda inputs: training_step.step((inputs,), {}))
    with pytest.raises(ValueError, match=r"called.*tf\.function"):
        outer(tf.constant(1.0))


def test_call_in_a_graph_of_version_1_is_rejected() -> None:
    training_step = training()
    with (
        tf.Graph().as_default(),
        pytest.raises(ValueError, match="disable_eager_execution"),
    ):
        training_step.step((tf.constant(1.0),), {})


def test_step_under_a_strategy_of_tensorflow_is_rejected() -> None:
    training_step = training()
    with tf.distribute.MirroredStrategy(["cpu:0"]).scope(), pytest.raises(ValueError):
        training_step.step((tf.constant(1.0),), {})


def test_interrupt_at_the_end_of_the_data_ends_the_other_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other ranks wait until the data of all ranks have ended."""
    training_step = training()
    rendezvous = mock.Mock(is_over=False, is_alone=False)
    rendezvous.check_sync_point.side_effect = KeyboardInterrupt
    end = tf.errors.OutOfRangeError(None, None, "end of sequence")
    monkeypatch.setattr(training_step, "_rendezvous", rendezvous)
    monkeypatch.setattr(training_step, "_synchronous_step", mock.Mock(side_effect=end))
    with pytest.raises(KeyboardInterrupt):
        training_step.step((tf.constant(1.0),), {})
    cause, error = rendezvous.abort.call_args.args
    assert isinstance(cause, KeyboardInterrupt)
    assert error is end


def test_functions_of_one_name_have_different_identities() -> None:
    assert [training()._identity for _ in range(2)] == ["step", "step#1"]


def test_closed_function_traces_no_step_for_the_log_directory(plans: Job) -> None:
    """Also where it is closed before its gradients are known."""
    assert plans.value("closed", 0) == {
        "0": [False, False, False],
        "1": [True, False, False],
        "3": [True, True, True],
    }


def test_missing_attribute_of_a_tf_function_raises_with_advice() -> None:
    decorated = tf_libra.optimize()(tf.function(step))
    with pytest.raises(AttributeError, match=r"'step'.* has no 'get_concrete_function': .* by ca"):
        decorated.get_concrete_function(tf.constant(1.0))
    assert decorated.__wrapped__.get_concrete_function(tf.constant(1.0))(tf.constant(2.0)) == 4
    with pytest.raises(AttributeError, match=r"has no 'nothing'$"):
        _ = decorated.nothing
    assert not hasattr(decorated, "python_function")


def test_copy_of_an_object_that_has_a_step_has_a_step_of_its_own() -> None:
    class Agent:
        def __init__(self) -> None:
            self.rate = 1.0
            self.step = tf_libra.optimize()(tf.function(self.learn))

        def learn(self, inputs: tf.Tensor) -> tf.Tensor:
            return self.rate * inputs

    agent = Agent()
    other = copy.deepcopy(agent)
    other.rate = 3.0
    assert other.step is not agent.step
    assert other.step.__wrapped__(tf.constant(2.0)) == 6
    assert agent.step.__wrapped__(tf.constant(2.0)) == 2


def test_objects_of_a_decorated_method_need_not_be_hashable() -> None:
    @dataclasses.dataclass
    class Agent:
        rate: float

        @tf_libra.optimize()
        def learn(self, inputs: tf.Tensor) -> tf.Tensor:
            return self.rate * inputs

    first, other = Agent(1.0), Agent(3.0)
    assert first.learn.__func__ is first.learn.__func__ is not other.learn.__func__


def test_objects_without_weak_references_have_steps_of_their_own() -> None:
    class Agent:
        __slots__ = ()

        @tf_libra.optimize()
        def learn(self, inputs: tf.Tensor) -> tf.Tensor:
            return inputs

    steps = [Agent().learn.__func__ for _ in range(3)]  # of which the `id` may be used again
    assert len({id(step) for step in steps}) == 3


def test_autograph_does_not_convert_a_step() -> None:
    class Agent:
        step = tf_libra.optimize()(tf.function(step))

    for function in (Agent.step, Agent().step):
        assert is_autograph_artifact(function)
