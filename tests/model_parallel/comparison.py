"""Comparison of stages with one process that accumulates the same microbatches."""

from typing import Any

import numpy as np
import tensorflow as tf

from tests.model_parallel.job import batches, train, train_alone
from tests.model_parallel.models import BURSTS, COUNTED, EVERY
from tf_libra.capture.variables import plain


def read(value: Any) -> Any:
    return tf.convert_to_tensor(value).numpy()


def assert_close(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(read(actual), read(expected), rtol=2e-4, atol=2e-5)


def check(model, starts, replicas, num_microbatches, num_steps=2, batch=24, num_groups=0):
    steps = batches(num_steps, batch)
    ranks = train((EVERY | COUNTED)[model], starts, replicas, num_microbatches, steps, num_groups)
    compare(model, ranks, num_steps, batch, num_microbatches)


def compare(model, ranks, num_steps, batch, num_microbatches):
    """Compares ranks with one process that accumulates microbatches."""
    expected, alone = train_alone(
        (EVERY | BURSTS | COUNTED)[model], num_steps, batch, num_microbatches
    )
    for rank in ranks:
        for actual, wanted in zip(rank.results, expected, strict=True):
            assert actual.keys() == wanted.keys()
            for name in wanted:
                assert_close(actual[name], wanted[name])
    check_variables(ranks, alone)


def check_variables(ranks, alone):
    """Compares each variable on the ranks of its stage."""
    variables = [[*rank.trained.variables, *rank.trained.state] for rank in ranks]
    for number, (name, expected) in zip(range(len(variables[0])), alone.items(), strict=False):
        num_owners = 0
        for rank, own in zip(ranks, variables, strict=True):
            handle = rank.graph.placeholder_of(plain(own[number]))
            if handle is None:
                continue
            if rank.partition.stage_of_variable(handle) in rank.executor.stages:
                num_owners += 1
                assert_close(own[number], expected)
        assert num_owners, name
