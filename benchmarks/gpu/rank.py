"""One rank of a step: `python -m benchmarks.gpu.rank JOB`, started by `benchmarks.gpu.launch`."""

import datetime
import importlib
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist

from benchmarks.gpu import documents
from benchmarks.gpu.communication import (
    CTA_POLICIES,
    THREADS_PER_CHANNEL,
    Communication,
    channels,
)
from benchmarks.gpu.device import Cpu, Device, Gpu
from benchmarks.gpu.environment import environment
from benchmarks.gpu.launch import Job
from benchmarks.gpu.tuner import Tuner


class Context:
    """Context of a step's code on its rank: the device, the others, the clock, the file.

    Attributes:
      job: what this rank is to do.
      device: where it computes.
      communication: all-reduces within its team.
      tuner: the plugin, where this rank's NCCL was given it.
      notes: what a reader of the results should know; those of rank 0 are written.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.notes: list[str] = []
        self._started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        timeout = datetime.timedelta(seconds=max(job.deadline - time.time(), 1) + 60)
        # Control messages go over Gloo, so that they touch neither the GPU nor NCCL.
        dist.init_process_group(
            "gloo",
            init_method=f"file://{job.store}",
            rank=job.rank,
            world_size=job.world_size,
            timeout=timeout,
        )
        self.device: Device = Cpu() if job.dry_run else Gpu()
        self.tuner = Tuner(job.tuner) if job.method == "tuner" and job.team == "planned" else None
        self._environment = environment(
            dry_run=job.dry_run, sharing=job.sharing, placement=job.placement
        )
        self.communication = self._communication()
        self._teams = {name: dist.new_group(list(ranks)) for name, ranks in job.teams.items()}

    def _communication(self) -> Communication:
        """Makes the groups of all teams, which takes all ranks, and returns this one's."""
        job = self.job
        most = channels(max(job.threads))
        by_threads: dict[int, Any] = {}
        by_policy: dict[str, Any] = {}
        for team, ranks in job.teams.items():
            # A communicator is made with as many channels as a plan may ask for.
            group = self._group(ranks, (most, most) if team == "planned" else None)
            if team == job.team:
                mine = group
            if team == "planned" and job.method == "communicators":
                for count in job.threads:
                    by_threads[count] = self._group(ranks, (channels(count), channels(count)))
            if team == "own" and self._has_policies():
                for name, policy in CTA_POLICIES.items():
                    by_policy[name] = self._group(ranks, None, policy)
        return Communication(
            self.device,
            mine,
            len(job.teams[job.team]),
            communicators=by_threads if job.team == "planned" else None,
            tuner=self.tuner,
            by_policy=by_policy,
        )

    def _has_policies(self) -> bool:
        """True if PyTorch passes a CTA policy on to NCCL."""
        if self.job.dry_run or hasattr(dist.ProcessGroupNCCL.Options().config, "cta_policy"):
            return True
        self.notes.append("this PyTorch has no CTA policies for NCCL: they are not compared")
        return False

    def _group(self, ranks: Any, ctas: tuple[int, int] | None, policy: int | None = None) -> Any:
        if self.job.dry_run:
            return dist.new_group(list(ranks), backend="gloo")
        options = dist.ProcessGroupNCCL.Options()
        if ctas is not None:
            options.config.min_ctas, options.config.max_ctas = ctas
        if policy is not None:
            options.config.cta_policy = policy
        return dist.new_group(list(ranks), backend="nccl", pg_options=options)

    @property
    def process_group(self) -> Any:
        """The team's group for DDP."""
        return self.communication.group

    def barrier(self) -> None:
        """Waits until the device is idle on all ranks."""
        self.device.synchronize()
        dist.barrier()

    def team_barrier(self) -> None:
        """The same within the team."""
        self.device.synchronize()
        dist.barrier(group=self._teams[self.job.team])

    def gather(self, value: Any) -> list[Any]:
        """One value per rank, in their order, on all ranks."""
        values: list[Any] = [None] * self.job.world_size
        dist.all_gather_object(values, value)
        return values

    def team_gather(self, value: Any) -> list[Any]:
        """One value per rank of the team."""
        values: list[Any] = [None] * len(self.job.teams[self.job.team])
        dist.all_gather_object(values, value, group=self._teams[self.job.team])
        return values

    def agree(self, value: Any, source: int = 0) -> Any:
        """The value of one rank, on all."""
        values = [value]
        dist.broadcast_object_list(values, src=source)
        return values[0]

    def time_left(self) -> float:
        """Seconds until the deadline."""
        return self.job.deadline - time.time()

    def goes_on(self, until: float = 0.0) -> bool:
        """Returns whether more than `until` seconds are left, as rank 0 sees it."""
        return self.agree(self.time_left() > until)

    def write(self, results: dict[str, Any], *, complete: bool = False) -> None:
        """Puts down what is known so far, on rank 0."""
        if self.job.rank != 0:
            return
        documents.write(
            Path(self.job.output),
            {
                "format": documents.FORMAT,
                "version": documents.VERSION,
                "step": self.job.step,
                "dry_run": self.job.dry_run,
                "complete": complete,
                "started": self._started,
                "environment": self._environment,
                "settings": {
                    "workers": len(self.job.teams["planned"]),
                    "method": self.job.method,
                    "threads": list(self.job.threads),
                    "threads_per_channel": THREADS_PER_CHANNEL,
                    "models": list(self.job.models),
                    "batch_factor": self.job.batch_factor,
                    "seed": self.job.seed,
                },
                "notes": self.notes,
                "results": results,
            },
        )


def main() -> None:
    """Runs a step on this rank."""
    context = Context(Job.from_json(sys.argv[1]))
    importlib.import_module(f"benchmarks.gpu.{context.job.step}").run(context)
    context.barrier()
    sys.stdout.flush()
    # NCCL's and MPS's own clean-up is not waited for: everything is written, and the others may
    # have gone.
    os._exit(0)


if __name__ == "__main__":
    main()
