"""TensorFlow's settings in workers of benchmarks, however the workers meet."""

import tensorflow as tf

from benchmarks.jobs.job import Task

LEARNING_RATE = 0.01
INTRA_OP_THREADS = 1


def set_up(task: Task) -> None:
    """On CPUs, with as many threads as the task says."""
    tf.config.set_visible_devices([], "GPU")
    if task.pinned:
        tf.config.threading.set_intra_op_parallelism_threads(INTRA_OP_THREADS)
        tf.config.threading.set_inter_op_parallelism_threads(task.inter_op_threads)
