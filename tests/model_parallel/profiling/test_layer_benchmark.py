"""The measurements of layers before planning, and that they leave nothing behind."""

import numpy as np
import pytest
import tensorflow as tf

from tests.model_parallel.job import batches, build_model
from tests.model_parallel.models import EVERY
from tf_libra.model_parallel.capture.step_recorder import StepRecorder
from tf_libra.model_parallel.partition.sized_traces import SizedTraces
from tf_libra.model_parallel.planning.link_rates import LinkRates
from tf_libra.model_parallel.profiling.layer_benchmark import (
    averaged,
    measured_layers,
    measured_stages,
)
from tf_libra.specs.cluster import Cluster
from tf_libra.specs.layer_graph import LayerGraph


@pytest.mark.parametrize("name", ["normalized", "dropping"])
def test_layers_and_updates_are_measured_without_any_effect(name):
    """Neither on variables, nor on what an optimizer keeps, nor on random states."""
    trained = build_model(EVERY[name])
    every = [*trained.variables, *trained.state, *trained.optimizer.variables]
    before = [tf.convert_to_tensor(variable).numpy() for variable in every]
    arguments = (batches(1, 8)[0], {})
    traces = SizedTraces(StepRecorder(tf.function(trained.step)), arguments, 4, 4, num_ranks=2)
    found = measured_layers(traces, arguments, 2)
    for variable, value in zip(every, before, strict=True):
        np.testing.assert_array_equal(tf.convert_to_tensor(variable).numpy(), value)
    assert found.names == tuple(layer.name for layer in traces.microbatch_graph.layers)
    assert found.input_shares == (0.5, 1.0)
    assert min(found.forward_seconds.min(), found.backward_seconds.min()) >= 0
    assert found.update_seconds.sum() > 0
    has_parameters = found.parameter_bytes > 0
    np.testing.assert_array_equal(found.update_seconds > 0, has_parameters)
    # A half of the samples takes at least a half, and no more than all.
    for half, whole in zip(
        found.replica_seconds(2), (found.forward_seconds, found.backward_seconds), strict=True
    ):
        assert np.all(half >= whole * (0.5 - 1e-9)) and np.all(half <= whole * (1 + 1e-9))


def test_a_step_that_rejects_a_share_of_a_microbatch_is_measured_all_the_same():
    """Time is taken for proportional to samples then."""
    trained = build_model(EVERY["deep"])

    def step(images, labels):
        if images.shape[0] % 4:
            raise TypeError("four at a time")
        return trained.step(images, labels)

    arguments = (batches(1, 8)[0], {})
    traces = SizedTraces(StepRecorder(tf.function(step)), arguments, 4, 4, num_ranks=2)
    found = measured_layers(traces, arguments, 2)
    assert found.input_shares == ()
    assert found.forward_seconds.sum() > 0


@pytest.mark.parametrize("in_condition", [False, True])
def test_an_update_that_cannot_be_undone_is_not_measured(in_condition):
    """The update's time stays unknown, and only steps run it."""
    trained = build_model(EVERY["deep"])
    calls = []

    steps = tf.Variable(0)

    def call():
        tf.numpy_function(lambda: calls.append(1), [], [])
        return steps.assign_add(1)

    def step(images, labels):
        result = trained.step(images, labels)
        tf.cond(steps >= 0, call, steps.read_value) if in_condition else call()
        return result

    arguments = (batches(1, 8)[0], {})
    traces = SizedTraces(StepRecorder(tf.function(step)), arguments, 4, 4)
    found = measured_layers(traces, arguments, 2)
    assert not calls
    assert found.update_seconds.sum() == 0
    assert found.input_shares == ()


def test_stages_are_measured_as_they_run_with_what_they_send_and_receive():
    """Without any effect; so many seconds for each message that nothing else counts."""
    trained = build_model(EVERY["normalized"])
    every = [*trained.variables, *trained.state, *trained.optimizer.variables]
    before = [tf.convert_to_tensor(variable).numpy() for variable in every]
    arguments = (batches(1, 8)[0], {})
    traces = SizedTraces(StepRecorder(tf.function(trained.step)), arguments, 4, 4, num_ranks=2)
    layers = measured_layers(traces, arguments, 2)
    last = len(layers.layers) - 1
    cut = traces.partition((0, last))
    links = LinkRates(Cluster.from_bandwidth(np.ones((2, 2))), 0.0, 1e3, 1e6)
    found = measured_stages(traces, arguments, 2, layers, (0, last), links)
    for variable, value in zip(every, before, strict=True):
        np.testing.assert_array_equal(tf.convert_to_tensor(variable).numpy(), value)
    for stage, own in enumerate((slice(0, last), slice(last, None))):
        for phase, seconds in (
            (cut.forward_phase(stage), found.forward_seconds),
            (cut.backward_phase(stage), found.backward_seconds),
        ):
            handled = sum(
                1e3 * (message.send_phase == phase) + 1e6 * (message.receive_phase == phase)
                for message in cut.messages
            )
            assert seconds[own].sum() - handled == pytest.approx(0.5, abs=0.5)
    # Nothing else is another than before, and each layer keeps its part of its stage.
    assert (found.names, found.activation_bytes) == (layers.names, layers.activation_bytes)
    np.testing.assert_array_equal(found.update_seconds, layers.update_seconds)
    assert found.input_shares == layers.input_shares
    for was, now in (
        (layers.forward_seconds, found.forward_seconds),
        (layers.backward_seconds, found.backward_seconds),
    ):
        parts = now[:last] / now[:last].sum(), was[:last] / was[:last].sum()
        np.testing.assert_allclose(*parts)


def test_a_rank_without_its_measurement_discards_those_of_all():
    """The measurements that all ranks have, of whole microbatches, are averaged all the same."""
    columns = ([[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]], [8, 8], [4])
    graph = LayerGraph.chain(*columns, input_shares=(0.5, 1), update_seconds=[0.5, 1])
    forward, backward = ([row[-1] for row in rows] for rows in columns[:2])
    other = LayerGraph.chain(forward, backward, [8, 8], [4], update_seconds=[1.5, 3])

    class Ranks:
        """Ranks that contribute in turn, and receive the contributions until then."""

        def __init__(self):
            self._told = []

        def all_gather(self, mine):
            self._told.append(mine)
            return self._told

    ranks = Ranks()
    averaged(other, ranks)
    found = averaged(graph, ranks)
    assert found.input_shares == ()
    np.testing.assert_array_equal(found.forward_seconds, forward)
    np.testing.assert_array_equal(found.backward_seconds, backward)
    np.testing.assert_array_equal(found.update_seconds, [1, 2])
    assert averaged(graph, Ranks()) == graph
