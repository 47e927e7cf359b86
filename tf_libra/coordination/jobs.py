"""The job that this process is a rank of."""

from tf_libra.coordination import horovod_job, mwms_job
from tf_libra.coordination.job import Job


def of_this_process() -> Job:
    """The job of a `MultiWorkerMirroredStrategy` where one was made, else Horovod's.

    Raises:
        ValueError: it is of both, or a strategy was made that knows no workers.
    """
    cluster = mwms_job.joined()
    if cluster is None:
        if mwms_job.is_made() and not horovod_job.is_known():
            raise ValueError(
                "a MultiWorkerMirroredStrategy was made while TF_CONFIG was not set, and so it"
                " knows no other workers: set TF_CONFIG in the environment of every worker, such as"
                f" {mwms_job.EXAMPLE}, before the strategy is made"
            )
        return horovod_job.HorovodJob()
    if horovod_job.is_known():
        raise ValueError(
            "this process is a rank of Horovod, by hvd.init(), and a worker of TF_CONFIG, by"
            f" MultiWorkerMirroredStrategy ({cluster.name(cluster.rank)}): use one of them"
        )
    return mwms_job.MultiWorkerJob(cluster)
