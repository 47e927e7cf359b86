"""Ranks of a benchmark's job: under Horovod, or by the launcher's variables without Horovod."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tf_libra.coordination import current_job

_TIMEOUT_SECONDS = 600.0


@dataclass(frozen=True)
class Ranks:
    """This process among the workers of its job.

    Attributes:
        rank: of this process.
        size: number of workers.
        uses_horovod: whether Horovod runs in this process.
        barrier: waits for all ranks at a place of this name.
        gather: from an array of this rank to those of all ranks, by a new first axis.
    """

    rank: int
    size: int
    uses_horovod: bool
    barrier: Callable[[str], None]
    gather: Callable[[np.ndarray], np.ndarray]


def join() -> Ranks:
    """Joins the job of this process: that of TF_CONFIG if it is set, else Horovod's."""
    return _by_variables() if "TF_CONFIG" in os.environ else _by_horovod()


def _by_horovod() -> Ranks:
    import horovod.tensorflow as hvd

    hvd.init()

    def barrier(name: str) -> None:
        # One name for all: Horovod negotiates a tensor that it knows with less ado.
        hvd.allreduce(tf.constant(0.0), name="barrier")

    def gather(array: np.ndarray) -> np.ndarray:
        gathered: np.ndarray = hvd.allgather(tf.constant(array[None]), name="gather").numpy()
        return gathered

    return Ranks(hvd.rank(), hvd.size(), True, barrier, gather)


def _by_variables() -> Ranks:
    world = current_job.get_job().world(_TIMEOUT_SECONDS)

    def exchange(message: dict[str, Any]) -> list[Any]:
        return current_job.get_job().exchange_json(message, _TIMEOUT_SECONDS)

    def barrier(name: str) -> None:
        exchange({"barrier": name})

    def gather(array: np.ndarray) -> np.ndarray:
        return np.asarray([rank["array"] for rank in exchange({"array": array.tolist()})])

    return Ranks(world.rank, world.size, False, barrier, gather)
