"""Hooks in Horovod's elastic states, which commit and restore what each rank has.

Model-parallel steps train a variable on some ranks only, and steps with sharded updates leave parts
of optimizer slots. So all ranks synchronize variables before a commit, a broadcast, or a change of
workers.
"""

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_libra.capture.variables import handles, plain
from tf_libra.coordination import current_job
from tf_libra.coordination.control_plane import Control
from tf_libra.internal import log_utils, native, patches, patching
from tf_libra.internal.process_state import STATE
from tf_libra.variable_sync.read_service import read_service
from tf_libra.variable_sync.sharded_variables import shard_registry
from tf_libra.variable_sync.variable_access import variable_access

_PLACE, _CALLER = "an elastic commit", "the state"


def begin_step(control: Control) -> None:
    """Records a step that leaves stale values: from now on states synchronize variables first.

    Args:
        control: reaches the ranks of the step.
    """
    shard_registry().begin_step(control)
    if "horovod.tensorflow" in sys.modules:  # else there are no states of Horovod
        _watch()


@dataclass
class _Watch:
    """Methods of elastic states that are replaced from the first model-parallel step on."""

    replaced: contextlib.ExitStack
    has_warned: bool = False


@STATE.value()
def watch_commits() -> contextlib.ExitStack:
    """Makes ranks meet in commits of all elastic states, from the first step on.

    A commit asks all ranks for new hosts, so that a rank in a commit and a rank in a step would
    wait for each other.
    """
    stack = contextlib.ExitStack()
    if patches.COMMIT.exists():
        stack.enter_context(patching.replaced(patches.COMMIT, _committing))
    return stack


@STATE.value()
def _watch() -> _Watch:
    """Replaces methods of all elastic states, Horovod's and the user's, existing and new."""
    watch_commits()
    stack = contextlib.ExitStack()
    if patches.HOST_UPDATES.exists():
        stack.enter_context(patching.replaced(patches.HOST_UPDATES, _updating_hosts))
    for patch in patches.KEEPING:
        if patch.exists():
            stack.enter_context(patching.replaced(patch, _keeping))
    for patch in patches.BROADCASTING:
        if patch.exists():
            stack.enter_context(patching.replaced(patch, _broadcasting))
    for patch in patches.RESTORING:
        if patch.exists():
            stack.enter_context(patching.replaced(patch, _restoring))
    return _Watch(stack)


def _committing(original: Callable[..., Any]) -> Callable[..., Any]:
    def commit(state: Any, *args: Any, **kwargs: Any) -> Any:
        control = shard_registry().control()
        if control is None:
            current_job.barrier(_PLACE, _CALLER)
        synchronize_all_ranks()
        if control is not None:
            _warn_of_uncommitted(state, control.rank)
        return original(state, *args, **kwargs)

    return commit


def _keeping(original: Callable[..., Any]) -> Callable[..., Any]:
    def keep(*args: Any, **kwargs: Any) -> Any:
        synchronize_all_ranks()
        return original(*args, **kwargs)

    return keep


def _broadcasting(original: Callable[..., Any]) -> Callable[..., Any]:
    def make(*args: Any, **kwargs: Any) -> Any:
        broadcast = original(*args, **kwargs)

        def call(variables: Any, root_rank: int, process_set: Any, *rest: Any) -> Any:
            if tf.executing_eagerly() and process_set.process_set_id == 0:  # all ranks take part
                synchronize_all_ranks()
            return broadcast(variables, root_rank, process_set, *rest)

        return call

    return make


def _restoring(original: Callable[..., Any]) -> Callable[..., Any]:
    def restore(state: Any, *args: Any, **kwargs: Any) -> Any:
        with restoring(_committed(state)):
            return original(state, *args, **kwargs)

    return restore


def _updating_hosts(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the check for new hosts, after which ranks enter another job with what they have."""
    from horovod.common.exceptions import HostsUpdatedInterrupt

    def check(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except HostsUpdatedInterrupt:
            synchronize_all_ranks()
            raise

    return check


def synchronize_all_ranks() -> None:
    """Synchronizes all sharded variables; all ranks call it.

    Raises:
        HorovodInternalError: a rank is gone, late, or elsewhere.
    """
    control = shard_registry().control()
    if control is None:
        return
    in_stages = shard_registry()
    if current_job.is_over(control, current_job.get_job()):
        in_stages.forget()
        return
    current_job.run_at(_PLACE, _CALLER, control, in_stages.synchronize_all)


@contextlib.contextmanager
def restoring(variables: Sequence[Any]) -> Iterator[None]:
    """Prepares variables for an assignment on all ranks, after which each rank has the values.

    Args:
        variables: `tf.Variable`s.
    """
    keys = [handle._id for variable in variables for handle in handles(variable)]
    with variable_access().unobserved():  # which may be missing, and are assigned here
        read_service().keep(keys)
        get_ready(variables)
        yield
        read_service().forget(keys)


def get_ready(variables: Iterable[Any]) -> None:
    """Makes variables assignable, with zeros for what this rank has freed or does not own.

    Args:
        variables: `tf.Variable`s.
    """
    for variable in variables:
        handle, dtype = variable.handle, variable.dtype
        with tf.device("/cpu:0"):
            native.load().ops.libra_release_owned(resource=handle)
        try:
            shape = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype).shape
        except tf.errors.InvalidArgumentError:  # a gather of it has failed
            shape = None
        if shape is None or not variable.shape.is_compatible_with(shape):
            zeros = tf.zeros(variable.shape, dtype)
            tf.raw_ops.AssignVariableOp(resource=handle, value=zeros)


def _committed(state: Any) -> list[Any]:
    """Returns the `tf.Variable`s that a state commits, as far as they can be found."""
    owners = (state, getattr(state, "model", None), getattr(state, "optimizer", None))
    found = [getattr(owner, "variables", ()) for owner in owners]
    return [plain(variable) for some in found for variable in (some() if callable(some) else some)]


def _warn_of_uncommitted(state: Any, rank: int) -> None:
    """Warns, once, of sharded variables that the state does not commit."""
    if rank > 0 or _watch().has_warned:
        return
    committed = _committed(state)
    keys = {handle._id for variable in committed for handle in handles(variable)}
    names = shard_registry().names_trained_except(keys)
    if committed and names:
        _watch().has_warned = True
        log_utils.logger(rank).warning(
            "the elastic state lacks %d variables that model-parallel steps train (first: %r):"
            " after the loss of a rank, training would continue from rank 0's stale values; add"
            " the variables to the state",
            len(names),
            names[0],
        )
