"""Conditions that measured times depend on, besides the model and the machines."""

import importlib.metadata

import tensorflow as tf


def of(engine: str, inputs: str, local_size: int) -> dict[str, str]:
    """The circumstances of this process.

    Args:
        engine: what carries gradients.
        inputs: signature of the training function.
        local_size: number of ranks on this host.
    """
    return {
        "tensorflow": tf.__version__,
        "tf_libra": package_version(),
        "engine": engine,
        "inputs": inputs,
        "local_size": str(local_size),
        "intra_op_threads": str(tf.config.threading.get_intra_op_parallelism_threads()),
        "inter_op_threads": str(tf.config.threading.get_inter_op_parallelism_threads()),
    }


def package_version() -> str:
    """The version of this package."""
    return importlib.metadata.version("tf-libra")
