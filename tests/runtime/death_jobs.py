"""The jobs of `jobs/deaths.py`, and checks of what their ranks report."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.worker_processes import Job, wait_until
from tf_libra.specs.plan import Plan, TensorGroup

WORLD_SIZE = 3
LAST = WORLD_SIZE - 1
# Which of the two the system reports depends on what was still under way.
GONE = re.compile(r"(rank \d) (closed the connection|is gone)")
# Far below the 600 s after which a rank that says nothing is given up, far above what is needed.
DEADLINE_SECONDS = 150.0
# A process that ends waits for so long for ranks that have stopped: Horovod's own abort message.
FAREWELL = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "10"}

# Of the gradient that a slow network is given: float32, 12 rows.
WIDE_BYTES = 4 * 12 * (1 << 16)

Die = Callable[..., Any]


def with_wide(plan: Plan) -> Plan:
    """Returns the plan with a long gradient more, in a group of its own."""
    return replace(
        plan,
        groups=(*plan.groups, TensorGroup(6, 7, 1)),
        tensor_names=(*plan.tensor_names, "wide"),
        num_bytes=(*plan.num_bytes, WIDE_BYTES),
        dtypes=("float32",) * 7,
    )


def document_of(job: Job, rank: int) -> dict[str, Any]:
    path = job.folder / f"deaths.{rank}.json"
    assert path.exists(), f"rank {rank} ended by {job.returncodes[rank]}: {job.output(rank)}"
    return dict(json.loads(path.read_text()))


def incident(folder: Path, rank: int = LAST) -> dict[str, Any]:
    path = folder / f"incident.{rank}.json"
    wait_until(path.exists, DEADLINE_SECONDS)
    return dict(json.loads(path.read_text()))


def check_survivors(job: Job, step: int | None, lost: int = LAST) -> None:
    """The survivors end with an exception that names the lost rank, and repeat it."""
    survivors = [rank for rank in range(job.world_size) if rank != lost]
    for rank in survivors:
        assert job.returncodes[rank] == 1, job.output(rank)
        first, again = document_of(job, rank)["errors"]
        assert first.startswith("HorovodInternalError: ")
        assert f"rank {rank}, " in first
        if step is not None:
            assert f"step {step} was not completed" in first
        # The next call fails immediately, with the first cause.
        cause = re.search(rf"rank {rank}, .*", first)
        assert cause is not None
        assert cause.group() in again
    # A rank that first sees another survivor give up may not hear in time why it did.
    named = re.compile(rf"rank(\(s\))? {lost}")
    assert any(named.search(document_of(job, rank)["errors"][0]) for rank in survivors)
