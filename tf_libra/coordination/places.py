"""Meet the other ranks at a place between steps, such as the end of an epoch.

A rank that is there while another one executes a step waits for what never comes, as does the
other. So ranks meet first, by the way that steps go, and both learn of it immediately.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from tf_libra.coordination import control_plane, jobs, signal_handling
from tf_libra.coordination.control_plane import Control
from tf_libra.coordination.job import Job

_Result = TypeVar("_Result")


def current_control() -> Control | None:
    """Return what reaches the ranks of the current job; None before they have met."""
    control = next(iter(control_plane.running()), None)
    return None if control is None or is_over(control, jobs.of_this_process()) else control


def is_over(control: Control, job: Job) -> bool:
    """Return whether those that it reached are not there any more."""
    try:
        return not control_plane.running() or job.world(0.0).job != control.job
    except ValueError:  # a failure has ended Horovod, too: they are still those that failed
        return False


def at(place: str, caller: str, control: Control, then: Callable[[Control], _Result]) -> _Result:
    """Meet all ranks at a place between steps, and call what needs them there.

    Args:
        place: between steps, the same on every rank.
        caller: what has come there.
        control: reaches the other ranks.
        then: given `control`.

    Raises:
        HorovodInternalError, or `tf.errors.UnavailableError` under a strategy of TensorFlow's: a
            rank is gone, late, in a step, or at another place.
    """
    try:
        return signal_handling.of_this_process().during(
            partial(_meet, place, caller, control, then)
        )
    except BaseException as error:
        lost = control.why_lost(error)
        for running in control_plane.running():
            running.abort(f"{type(error).__name__}: {error}")
        if lost is None:
            raise
        if control_plane.is_elsewhere(error):
            lost = (
                f"rank {control.rank} has come to {place} ({caller}), and another rank has not:"
                f" give each rank equally many batches ({lost})"
            )
        raise jobs.of_this_process().lost(lost) from error


def meet(place: str, caller: str) -> None:
    """Meet all ranks at a place between steps; do nothing before the ranks of the job have met.

    Arguments and errors are those of `at`.
    """
    control = current_control()
    if control is not None:
        at(place, caller, control, lambda control: None)


def _meet(place: str, caller: str, control: Control, then: Callable[[Control], _Result]) -> _Result:
    control.meet(control_plane.between_steps(place), caller)
    return then(control)
