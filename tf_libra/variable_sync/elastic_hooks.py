"""Elastic states and broadcasts take what a rank has, though stages train it on some ranks alone.

A commit, a restore and what follows are each rank's own, of the values that it has. So all ranks
bring theirs up to date before, and also when Horovod reports that workers come or go.
"""

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_libra.capture.variables import handles, plain
from tf_libra.coordination import current_job
from tf_libra.coordination.control_plane import Control
from tf_libra.internal import log_utils, patches
from tf_libra.internal.process_state import STATE
from tf_libra.variable_sync.sharded_variables import shard_registry

_PLACE, _CALLER = "an elastic commit", "the state"


def begin_step(control: Control) -> None:
    """A step in stages begins: from now on states bring variables up to date first.

    Args:
        control: reaches those who run it.
    """
    shard_registry().begin_step(control)
    _watch()


@dataclass
class _Watch:
    """Replaced methods of elastic states, from the first step in stages on."""

    replaced: contextlib.ExitStack
    has_warned: bool = False


@STATE.value()
def watch_commits() -> contextlib.ExitStack:
    """Let ranks meet in commits of all elastic states, from the first step on.

    Horovod asks all ranks for new hosts there, so a rank in a step would wait for one in a commit,
    and that one for the rank in the step.
    """
    stack = contextlib.ExitStack()
    if patches.COMMIT.exists():
        stack.enter_context(patches.replaced(patches.COMMIT, _committing))
    return stack


@STATE.value()
def _watch() -> _Watch:
    """Watches all elastic states, Horovod's and the user's own, including existing ones."""
    watch_commits()
    stack = contextlib.ExitStack()
    if patches.HOST_UPDATES.exists():
        stack.enter_context(patches.replaced(patches.HOST_UPDATES, _updating_hosts))
    for patch in patches.KEEPING:
        if patch.exists():
            stack.enter_context(patches.replaced(patch, _keeping))
    for patch in patches.BROADCASTING:
        if patch.exists():
            stack.enter_context(patches.replaced(patch, _broadcasting))
    for patch in patches.RESTORING:
        if patch.exists():
            stack.enter_context(patches.replaced(patch, _restoring))
    return _Watch(stack)


def _committing(original: Callable[..., Any]) -> Callable[..., Any]:
    def commit(state: Any, *args: Any, **kwargs: Any) -> Any:
        control = shard_registry().control()
        if control is None:
            current_job.meet(_PLACE, _CALLER)
        synchronize_all_ranks()
        if control is not None:
            _warn_of_what_is_not_kept(state, control.rank)
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
            if tf.executing_eagerly() and process_set.process_set_id == 0:  # all ranks call it
                synchronize_all_ranks()
            return broadcast(variables, root_rank, process_set, *rest)

        return call

    return make


def _restoring(original: Callable[..., Any]) -> Callable[..., Any]:
    def restore(state: Any, *args: Any, **kwargs: Any) -> Any:
        get_ready(_kept(state))
        return original(state, *args, **kwargs)

    return restore


def _updating_hosts(original: Callable[..., Any]) -> Callable[..., Any]:
    """Raises the same on all ranks, which then meet in another job, each with what it has."""
    from horovod.common.exceptions import HostsUpdatedInterrupt

    def check(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except HostsUpdatedInterrupt:
            synchronize_all_ranks()
            raise

    return check


def synchronize_all_ranks() -> None:
    """Brings all that was trained in stages up to date on every rank, all of which call it.

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


def get_ready(variables: Iterable[Any]) -> None:
    """Variables can be assigned to: those that this rank has let go have zeros for elements.

    Args:
        variables: `tf.Variable`s.
    """
    for one in variables:
        handle, dtype = one.handle, one.dtype
        value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
        if not one.shape.is_compatible_with(value.shape):
            zeros = tf.zeros(one.shape, dtype)
            tf.raw_ops.AssignVariableOp(resource=handle, value=zeros)


def _kept(state: Any) -> list[Any]:
    """The `tf.Variable`s that a state keeps, as far as can be known."""
    owners = (state, getattr(state, "model", None), getattr(state, "optimizer", None))
    found = [getattr(one, "variables", ()) for one in owners]
    return [plain(one) for some in found for one in (some() if callable(some) else some)]


def _warn_of_what_is_not_kept(state: Any, rank: int) -> None:
    """Says so once, of a state of which it can be known what it keeps."""
    if rank > 0 or _watch().has_warned:
        return
    kept = _kept(state)
    keys = {handle._id for one in kept for handle in handles(one)}
    names = shard_registry().names_trained_except(keys)
    if kept and names:
        _watch().has_warned = True
        log_utils.logger(rank).warning(
            "the elastic state does not keep %d variables that steps in stages write, %s the first"
            " of them: when ranks are lost, the others go on from what rank 0 has, which is old of"
            " other ranks' stages",
            len(names),
            names[0],
        )
