"""Identities that are equal on every rank, or in every job of the same kind.

`function_identity` distinguishes training functions of the same name. `environment_fingerprint`
names the conditions, besides model and machines, on which measured times depend.
"""

import importlib.metadata
from collections import Counter

import tensorflow as tf

from tf_libra.capture.automatic_names import without_numbers
from tf_libra.internal.process_state import STATE, OnReset

# Separates the step from the model in the name that `keras/fit.py` gives to a training step.
_OF_MODEL = " of model "


def environment_fingerprint(
    engine: str,
    inputs: str,
    local_size: int,
    wire_dtype: str | None = None,
    shard_updates: bool | str = False,
) -> dict[str, str]:
    """Returns the environment of this process, by name.

    Args:
        engine: name of the backend that executes all-reduces.
        inputs: signature of the training function.
        local_size: number of ranks on this host.
        wire_dtype: dtype to which plans may round tensors on their way; None: to none.
        shard_updates: as for `optimize`.
    """
    options = {"wire_dtype": wire_dtype, "shard_updates": shard_updates}
    return {name: str(value) for name, value in options.items() if value} | {
        "tensorflow": tf.__version__,
        "tf_libra": package_version(),
        "engine": engine,
        "inputs": inputs,
        "local_size": str(local_size),
        "intra_op_threads": str(tf.config.threading.get_intra_op_parallelism_threads()),
        "inter_op_threads": str(tf.config.threading.get_inter_op_parallelism_threads()),
    }


def package_version() -> str:
    """Returns the version of this package."""
    return importlib.metadata.version("tf-libra")


# Workers that have just joined an elastic job count from zero, so all ranks have to.
@STATE.value(on_reset=OnReset.DISCARD)
def _num_decorated() -> Counter[str]:
    """Returns the number of decorated functions, by name."""
    return Counter()


def function_identity(name: str) -> str:
    """Returns the identity of one more training function of this name.

    A script decorates in the same order on every rank, so that counting tells functions of the same
    name apart. Numbers that Keras may have given to the model are left out: a rank that has built
    other models before has other numbers.
    """
    step, of_model, model = name.partition(_OF_MODEL)
    name = step + of_model + (without_numbers(model) if of_model else "")
    count = _num_decorated()[name]
    _num_decorated()[name] += 1
    return f"{name}#{count}" if count else name
