"""One rank trains the joint batch to the weights and results of one process."""

import concurrent.futures
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.model_parallel import models
from tests.model_parallel.job import (
    batches,
    cached_model,
    make_rank,
    run,
    train_alone,
    train_with_layout,
)
from tests.model_parallel.threads import Threads, ThreadTransport
from tf_libra.model_parallel.partition.guarded_calls import guarded_calls
from tf_libra.model_parallel.partition.layout import Layout

MODELS = {
    make.__name__: make
    for make in (
        models.convolutional, models.normalized, models.dropping, models.tied, models.embedded,
        models.two_optimizers, models.spectral, models.counted,
    )
}  # fmt: skip
BATCH, NUM_STEPS = 12, 2


def assert_close(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(actual, expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("model", MODELS)
def test_one_rank_trains_like_one_process(model):
    """Results are equal on all ranks; variables change on the computing rank alone.

    The batch statistics, draws and metrics of these models are those of the joint batch.
    """
    make, computing = MODELS[model], 1
    expected, alone = train_alone(make, NUM_STEPS, BATCH, 1)
    ranks = train_with_layout(
        make, lambda names: Layout.on_one_rank(computing, 3), 3, 1, batches(NUM_STEPS, BATCH)
    )
    for rank in ranks:
        for actual, wanted in zip(rank.results, expected, strict=True):
            assert actual.keys() == wanted.keys()
            for name, value in wanted.items():
                assert_close(actual[name], value)
    values = [[*map(read, rank.trained.every_variable)] for rank in ranks]
    for number, (name, wanted) in enumerate(alone.items()):
        np.testing.assert_allclose(values[1][number], wanted, 2e-4, 2e-5, err_msg=name)
    initial = [read(value) for value in cached_model(make, -1).trained.every_variable]
    for number, value in enumerate(initial):
        np.testing.assert_array_equal(values[0][number], value)
        np.testing.assert_array_equal(values[2][number], value)


def read(value: Any) -> Any:
    return tf.convert_to_tensor(value).numpy()


def test_spans_are_of_the_computing_rank():
    ranks = train_with_layout(
        models.deep, lambda names: Layout.on_one_rank(0, 2), 2, 1, batches(1, BATCH)
    )
    [span] = ranks[0].executor.task_spans
    assert span.kind == "step" and 0 <= span.start_seconds < span.stop_seconds
    assert ranks[1].executor.task_spans == () and ranks[1].executor.stages == ()


class RecordingTransport(ThreadTransport):
    """A transport that keeps what it has sent: symbolic tensors, if a function sends them."""

    def __init__(self, threads: Threads, rank: int) -> None:
        super().__init__(threads, rank)
        self.sent: list[Any] = []

    def send(self, tensor: Any, to_rank: int, name: str) -> None:
        self.sent.append(tensor)
        super().send(tensor, to_rank, name)


def test_results_leave_before_updates_unless_the_step_may_be_undone():
    """In a guarded step nothing is sent before the function has ended, or failed."""
    expected, _ = train_alone(models.deep, 2, BATCH, 1)
    threads, steps = Threads(2), batches(2, BATCH)
    transport = RecordingTransport(threads, 0)
    ranks = [
        make_rank(models.deep, each, lambda names: Layout.on_one_rank(0, 2), 2, 1, steps)
        for each in (transport, threads.transport(1))
    ]
    in_function, transport.sent = transport.sent, []
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        other = pool.submit(run, ranks[1], 1)
        with guarded_calls():
            run(replace(ranks[0], batches=steps[:1]), 0)
        run(replace(ranks[0], batches=steps[1:]), 0)
        other.result()
    for rank in ranks:
        for actual, wanted in zip(rank.results, expected, strict=True):
            for name, value in wanted.items():
                assert_close(actual[name], value)
    assert len(transport.sent) == len(in_function) == 3  # in the guarded step, and in the function
    assert not any(map(tf.is_symbolic_tensor, transport.sent))
    assert all(map(tf.is_symbolic_tensor, in_function))
    late = [tensor for tensor in in_function if depends_on_writes(tensor)]
    assert len(late) == 1  # the number of updates


def depends_on_writes(tensor: Any) -> bool:
    pending, found = [tensor.op], set()
    while pending:
        op = pending.pop()
        if op not in found:
            found.add(op)
            pending += [*op.control_inputs, *(each.op for each in op.inputs)]
    return any("Assign" in op.type or "Apply" in op.type for op in found)
