"""Hooks in checkpoints, which read and assign variables of which a rank may hold a part only.

If TensorFlow cannot read or assign a variable, all ranks synchronize variables, and the checkpoint
is saved or restored again. A checkpoint without such variables needs no other rank.
"""

import contextlib
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import tensorflow as tf

from tf_libra.internal import patches, patching
from tf_libra.internal.process_state import STATE
from tf_libra.variable_sync import elastic_hooks

_PLACE = "the save or restore of a checkpoint with optimizer slots"
_CALLER = "a checkpoint; with shard_updates, save on all ranks or call synchronize_variables()"


class _PartialVariables(Protocol):
    """Knows whether variables hold parts of their values."""

    def __bool__(self) -> bool:
        """Returns whether a variable may hold a part only."""
        ...


@dataclass
class _Watch:
    """Functions that are replaced from the first step on that leaves parts in variables."""

    replaced: contextlib.ExitStack
    variables: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)


@STATE.value()
def _watch() -> _Watch:
    stack = contextlib.ExitStack()
    for patch in patches.SAVING:
        if patch.exists():
            stack.enter_context(patching.replaced(patch, _reading))
    return _Watch(stack)


def watch(variables: _PartialVariables) -> None:
    """Makes checkpoints synchronize variables that cannot be read.

    Args:
        variables: must be hashable, and is referenced weakly.
    """
    _watch().variables.add(variables)


def _reading(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except tf.errors.InvalidArgumentError as error:
            # A variable that holds a part has the dtype variant for TensorFlow.
            if "variant" not in str(error) or not any(_watch().variables):
                raise
        elastic_hooks.synchronize_all_ranks(_PLACE, _CALLER)
        return original(*args, **kwargs)

    return call
