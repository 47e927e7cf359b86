"""TensorFlow's settings in workers of benchmarks, however the workers meet."""

from typing import Any

import tensorflow as tf

from benchmarks.jobs.job import Task

# So small that weights stay where they begin. A job trains on one batch: at usual rates it learns
# that by heart, and blocks of its gradients become zeros, which TF-Libra does not send and others
# do. No training on new data is like that.
LEARNING_RATES = {"sgd": 1e-6, "momentum": 1e-6, "adam": 1e-6}


def set_up(task: Task) -> None:
    """On CPUs, with as many threads as the task says."""
    tf.config.set_visible_devices([], "GPU")
    if task.pinned:
        tf.config.threading.set_intra_op_parallelism_threads(task.cores)
        tf.config.threading.set_inter_op_parallelism_threads(task.inter_op_threads)


def make_optimizer(task: Task) -> Any:
    """Returns a new optimizer of Keras."""
    rate = LEARNING_RATES[task.optimizer]
    if task.optimizer == "momentum":
        return tf.keras.optimizers.SGD(rate, momentum=0.9)
    kinds = {"sgd": tf.keras.optimizers.SGD, "adam": tf.keras.optimizers.Adam}
    return kinds[task.optimizer](rate)


def describe_optimizer(task: Task) -> str:
    """Returns the optimizer's name and learning rate, for the settings of a result."""
    names = {"sgd": "SGD({})", "momentum": "SGD({}, momentum=0.9)", "adam": "Adam({})"}
    return names[task.optimizer].format(LEARNING_RATES[task.optimizer])
