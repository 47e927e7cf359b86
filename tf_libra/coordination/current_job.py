"""The job of this process, and barriers of its ranks between two steps.

A rank between steps, such as at the end of an epoch, and a rank in a step would wait for each other
forever. So ranks meet over the control plane first, where both learn of it immediately.
"""

import os
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from tf_libra.coordination import control_plane, horovod_job, launcher_environment, mwms_job
from tf_libra.coordination.control_plane import Control
from tf_libra.coordination.job import Job
from tf_libra.coordination.launched_job import LaunchedJob
from tf_libra.coordination.launcher_environment import LauncherEnvironment
from tf_libra.coordination.launcher_variables import join_address
from tf_libra.coordination.signal_handling import step_interrupts
from tf_libra.internal import log_utils
from tf_libra.internal.process_state import STATE
from tf_libra.launcher import LAUNCHED_VARIABLE, SELECT_VARIABLE

_Result = TypeVar("_Result")


def get_job() -> Job:
    """Returns the job of this process.

    A `MultiWorkerMirroredStrategy` or an initialized Horovod decides by itself. Otherwise the
    variables of the launcher do, and without any the process is a job of one.

    Raises:
        ValueError: there are two jobs, the strategy knows no other workers, or a variable of the
            launcher is invalid.
    """
    cluster = mwms_job.joined()
    if cluster is None and mwms_job.is_made() and not horovod_job.is_known():
        raise ValueError(
            "a MultiWorkerMirroredStrategy was made while TF_CONFIG was not set, and so it"
            " knows no other workers: set TF_CONFIG in the environment of every worker, such as"
            f" {mwms_job.EXAMPLE}, before the strategy is made"
        )
    if cluster is None:
        return _horovod_or_launched()
    if horovod_job.is_known():
        raise ValueError(
            "this process is a rank of Horovod, by hvd.init(), and a worker of TF_CONFIG, by"
            f" MultiWorkerMirroredStrategy ({cluster.name(cluster.rank)}): use one of them"
        )
    return mwms_job.MultiWorkerJob(cluster)


def _horovod_or_launched() -> Job:
    if horovod_job.is_known():
        _check_horovod_is_not_alone()
        return horovod_job.HorovodJob()
    if horovod_job.has_been_used():  # between a shutdown and the next initialization
        return horovod_job.HorovodJob()
    found = launcher_environment.detect()
    if found is None:
        if launcher_environment.is_horovod_selected() or horovod_job.is_expected():
            return horovod_job.HorovodJob()
        found = LauncherEnvironment(launcher_environment.ONE_PROCESS, 0, 1)
    _log_once(found)
    return LaunchedJob(found)


def _check_horovod_is_not_alone() -> None:
    """Rejects a Horovod of one process in a job of several, which would train without the others.

    Raises:
        ValueError: the launcher has started several ranks, and Horovod knows one.
    """
    if horovod_job.world().size > 1:
        return
    found = launcher_environment.detect()
    if found is not None and found.world_size > 1:
        raise ValueError(
            f"hvd.init() found one process, and the variables of {found.name} name"
            f" {found.world_size}: start the script with tf-libra run --horovod, or"
            f" remove hvd.init(); {SELECT_VARIABLE}=horovod ignores the variables"
        )


@STATE.value()
def _logged() -> set[LauncherEnvironment]:
    """Returns the decisions that this process has logged."""
    return set()


def _log_once(found: LauncherEnvironment) -> None:
    if found in _logged():
        return
    _logged().add(found)
    log = log_utils.logger(found.rank)
    is_ours = LAUNCHED_VARIABLE in os.environ
    for other in () if is_ours else launcher_environment.disagreements(found):
        log.warning(
            "job: the variables of %s name rank %d of %d, and those of %s rank %d of %d: %s"
            " decides; %s selects another",
            *(found.name, found.rank, found.world_size),
            *(other.name, other.rank, other.world_size),
            *(found.name, SELECT_VARIABLE),
        )
    if found.world_size == 1:
        log.debug("job: one process (launcher %s)", found.name)
        tasks = os.environ.get("SLURM_NTASKS", "1")
        if tasks != "1" and not os.environ.get(SELECT_VARIABLE):
            log.warning(
                "job: one process, though SLURM_NTASKS=%s: srun python train.py starts all ranks",
                tasks,
            )
        return
    log.info(
        "job: rank %d of %d by %s; ranks meet at %s",
        found.rank,
        found.world_size,
        "tf-libra run" if is_ours else f"the variables of {found.name}",
        join_address(found.address, found.ports),
    )


def get_control() -> Control | None:
    """Returns the control plane of the current job; None before the ranks have met."""
    control = next(iter(control_plane.running()), None)
    return None if control is None or is_over(control, get_job()) else control


def is_over(control: Control, job: Job) -> bool:
    """Returns whether the ranks that `control` reached belong to an earlier job."""
    try:
        return not control_plane.running() or job.world(0.0).job != control.job
    except ValueError:  # a failure has ended Horovod, too: the ranks are still those that failed
        return False


def barrier(sync_point: str, caller: str) -> None:
    """Waits for all ranks at a point between steps; does nothing before the rendezvous.

    Arguments and errors are those of `run_at`.
    """
    control = get_control()
    if control is not None:
        run_at(sync_point, caller, control, lambda control: None)


def run_at(
    sync_point: str, caller: str, control: Control, call: Callable[[Control], _Result]
) -> _Result:
    """Waits for all ranks at a point between steps, then makes a call that needs them all.

    Args:
        sync_point: name of the point, the same on every rank.
        caller: component that has reached the point, for messages.
        control: reaches the other ranks.
        call: called with `control`.

    Raises:
        HorovodInternalError, or `tf.errors.UnavailableError` under a strategy of TensorFlow: a rank
            is gone, late, in a step, or at another place.
    """
    try:
        return step_interrupts().during(
            partial(_call_after_barrier, sync_point, caller, control, call)
        )
    except BaseException as error:
        lost = control.why_lost(error)
        for running in control_plane.running():
            running.abort(f"{type(error).__name__}: {error}")
        if lost is None:
            raise
        if control_plane.is_elsewhere(error):
            lost = (
                f"rank {control.rank} has come to {sync_point} ({caller}), and another rank has"
                f" not: give each rank equally many batches ({lost})"
            )
        raise get_job().lost(lost) from error


def _call_after_barrier(
    sync_point: str, caller: str, control: Control, call: Callable[[Control], _Result]
) -> _Result:
    control.barrier(control_plane.between_steps(sync_point), caller)
    return call(control)
