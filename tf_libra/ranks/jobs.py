"""Which job this process is a rank of."""

from tf_libra.ranks import horovod, multi_worker
from tf_libra.ranks.job import Job


def of_this_process() -> Job:
    """The job of a `MultiWorkerMirroredStrategy` where one was made, else Horovod's.

    Raises:
        ValueError: it is of both at once, or a strategy was made that knows no workers.
    """
    cluster = multi_worker.joined()
    if cluster is None:
        if multi_worker.is_made() and not horovod.is_known():
            raise ValueError(
                "a MultiWorkerMirroredStrategy was made while TF_CONFIG was not set, and so it"
                " knows no other workers: set TF_CONFIG in the environment of every worker, such as"
                f" {multi_worker.EXAMPLE}, before the strategy is made"
            )
        return horovod.HorovodJob()
    if horovod.is_known():
        raise ValueError(
            "this process is a rank of Horovod, by hvd.init(), and a worker of TF_CONFIG, by"
            f" MultiWorkerMirroredStrategy ({cluster.name(cluster.rank)}): use one of them"
        )
    return multi_worker.MultiWorkerJob(cluster)
