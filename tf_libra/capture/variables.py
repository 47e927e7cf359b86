"""Kinds and names of TensorFlow's and Keras' variables, and their creation outside of traces."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tf_libra.internal import patches, patching, tf_internal

# Variable names of Keras' SeedGenerator and tf.random.Generator.
_RANDOM_STATES = ("seed_generator_state", "StateVar")


def plain(variable: Any) -> Any:
    """The `tf.Variable` that a variable of Keras 3 carries; anything else as it is."""
    value = getattr(variable, "value", None)  # of TensorFlow's own it is a method
    return value if isinstance(value, tf.Variable) else variable


def handles(variable: Any) -> list[Any]:
    """The handles of a `tf.Variable`: of one that a strategy distributes, those of its parts."""
    components = getattr(variable, "_values", None)
    return [component.handle for component in components or (variable,)]


def find_value(handle: Any) -> Any:
    """Returns dtype and shape of the value behind an eager handle, as TensorFlow stores them.

    None if the handle is of a resource of another kind, such as a table, an iterator or the writer
    of summaries, or if TensorFlow does not know.
    """
    data = getattr(handle, "_handle_data", None)
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        return None
    return data.shape_and_type[0]


def is_own_by_strategy(handle: Any) -> bool:
    """Returns whether a strategy lets each replica write a variable, and sums at reads alone.

    Args:
        handle: of the variable.
    """
    container = getattr(handle, "_distributed_container", None)
    variable = None if container is None else container()
    sync = getattr(variable, "synchronization", None)
    return sync is tf.VariableSynchronization.ON_READ


def is_random_state(variable: Any) -> bool:
    """Returns whether a variable is the state of a random generator, which is each rank's own."""
    return any(state in variable.name for state in _RANDOM_STATES)


def variable_key(variable: Any) -> int | str:
    """Identify a variable in all traces of one function.

    Args:
        variable: TensorFlow's or Keras'.

    Returns:
        A number that no other variable of this process gets; of a variable whose handle is a
        tensor of the trace, that tensor's name.
    """
    handle = handles(plain(variable))[0]
    return int(handle._id) if isinstance(handle, tf_internal.EagerTensor) else str(handle.name)


def variable_name(variable: Any) -> str:
    """Returns the name of the variable in plans and messages."""
    # Keras 3's `path` is unique within a model; its `name` is just "kernel".
    return str(getattr(variable, "path", None) or variable.name.split(":")[0])


def variables_of(graph: Any) -> list[Any]:
    """The variables that a graph uses; also those of one that is being traced."""
    return [*graph.variables, *graph._watched_variables] if hasattr(graph, "variables") else []


@contextlib.contextmanager
def optimizer_variables_outside_trace() -> Iterator[None]:
    """Creates variables of Keras optimizers eagerly while the context lasts.

    Optimizers of Keras 3 create their variables in the first `apply_gradients`. If that is in a
    trace, each variable adds a conditional to the trace and an initializer to trace and lift out of
    it: a third of the time of all tracing. TensorFlow discards this trace and traces the step
    again, with built optimizers, as it does if optimizers of Keras 2 create their variables, always
    eagerly.
    """
    if "keras" not in sys.modules:  # so the step has no such optimizer
        yield
        return
    with patching.replaced(patches.OPTIMIZER_VARIABLE, _eagerly):
        yield


def _eagerly(original: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        with tf.init_scope():
            return original(*args, **kwargs)

    return call
