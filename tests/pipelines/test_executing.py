"""Stages that run as ranks do train to the weights of one process that accumulates."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.pipelines.job import batches, fresh, train
from tests.pipelines.models import EVERY
from tf_libra.tracing.variables import plain


def read(value: Any) -> Any:
    return tf.convert_to_tensor(value).numpy()


def close(one: Any, other: Any) -> None:
    np.testing.assert_allclose(read(one), read(other), rtol=2e-4, atol=2e-5)


def check(model, starts, replicas, num_microbatches, num_steps=2, batch=24):
    make = EVERY[model]
    steps = batches(num_steps, batch)
    ranks = train(make, starts, replicas, num_microbatches, steps)
    alone = fresh(make)
    wanted = [
        {name: read(value) for name, value in alone.accumulated(*step, num_microbatches).items()}
        for step in steps
    ]
    for rank in ranks:
        for got, want in zip(rank.returned, wanted, strict=True):
            assert got.keys() == want.keys()
            for name in want:
                close(got[name], want[name])
    check_variables(ranks, alone)


@pytest.mark.parametrize("model", EVERY)
def test_weights_are_those_of_one_process(model):
    """Models of all kinds, in as many stages as they have cuts of, up to three."""
    check(model, (0, 1, 2), (1, 1, 1), 4)


@pytest.mark.parametrize(
    ("starts", "replicas", "num_microbatches"),
    [((0,), (2,), 3), ((0, 2), (2, 1), 2), ((0, 1), (1, 2), 4), ((0, 2, 3), (2, 2, 1), 1)],
)
def test_replicas_share_each_microbatch(starts, replicas, num_microbatches):
    """Layers between weights of all sizes, an update that takes the norm of all gradients."""
    batch = 24 if sum(replicas) != 5 else 40
    check("convolutional", starts, replicas, num_microbatches, batch=batch)


def test_a_tensor_that_is_no_sample_goes_to_replicas():
    """The table of a language model crosses all cuts, and its gradient comes back."""
    check("tied", (0, 2), (1, 2), 2)


def check_variables(ranks, alone):
    """Each variable on the ranks of its stage."""
    for number, want in enumerate([*alone.variables, *alone.state]):
        seen = 0
        for rank in ranks:
            own = [*rank.trained.variables, *rank.trained.state][number]
            handle = rank.graph.handle_of(plain(own))
            if handle is None or rank.cut.stage_of_variable(handle) != rank.execution.stage:
                continue
            seen += 1
            close(own, want)
        assert seen, want.name
