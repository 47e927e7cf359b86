"""Rank and size of this process, under every launcher, to share out data and to save once.

They are known before the first training step. Under Horovod, call `hvd.init()` first; under a
`MultiWorkerMirroredStrategy`, make the strategy first.
"""

from tf_libra.config.validators import check_timeout
from tf_libra.coordination import current_job


def rank() -> int:
    """Returns the rank of this process in its job, from 0; 0 without any launcher.

    Raises:
        ValueError: a variable of the launcher is invalid, or Horovod is not initialized.
    """
    return current_job.get_job().rank_and_size()[0]


def size() -> int:
    """Returns the number of processes of the job; 1 without any launcher. Errors as for `rank`."""
    return current_job.get_job().rank_and_size()[1]


def local_rank() -> int:
    """Returns the rank of this process among those of its host, from 0.

    If the launcher sets no variable for it, the ranks meet in the first call of one of `local_rank`
    and `local_size`, or in the first training step: all ranks must come to one of these.

    Raises:
        ValueError: as for `rank`.
        LostRankError: a rank did not come in time.
    """
    return current_job.get_job().local_rank_and_size(check_timeout("timeout_seconds", None))[0]


def local_size() -> int:
    """Returns the number of the job's processes on this host. Waits and raises as `local_rank`."""
    return current_job.get_job().local_rank_and_size(check_timeout("timeout_seconds", None))[1]
