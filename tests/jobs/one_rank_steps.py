"""Steps, values and slow ranks that the jobs `one_rank.py` and `one_rank_trials.py` share."""

import contextlib
import time
from unittest import mock

import harness
import tensorflow as tf

from tf_libra.model_parallel.execution.stage_variables import StageVariables

cases = harness.Cases()
SAMPLES, LAST = 24, harness.SIZE - 1
MAX_STEPS = 180  # more than trials take
FAMILIES = ("one-rank", "spp", "deeppool")
SLOW_SECONDS = 0.2  # a hundred times what a step takes


@contextlib.contextmanager
def slowed(rank):
    """Lets a rank compute longer in every step that it trains for all."""
    computing = StageVariables.computing

    @contextlib.contextmanager
    def compute(holding):
        if rank == harness.RANK:
            time.sleep(SLOW_SECONDS)
        with computing(holding):
            yield

    with mock.patch.object(StageVariables, "computing", compute):
        yield


def own(batch):
    return [harness.own(part) for part in batch]


def every_value(trained):
    every = map(tf.convert_to_tensor, trained.every_variable)
    return {str(i): value.numpy() for i, value in enumerate(every)}
