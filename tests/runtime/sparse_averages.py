"""Checks of the cases that `tests/jobs/sparse_rows.py` makes."""

from tests.worker_processes import Job


def check_sparse_averages(job: Job, size: int) -> None:
    """Checks that the first `size` ranks have the averages of dense gradients, with equal bits."""
    case = f"sparse_{size}"
    first = job.arrays(case, 0)
    assert len(first) > 20
    for rank in range(job.world_size):
        value = job.value(case, rank)
        assert value == {"wrong": [], "saved": rank < size}
        if value["saved"]:
            saved = job.arrays(case, rank)
            assert all(saved[name].tobytes() == first[name].tobytes() for name in first)
