"""Horovod backend: executes a plan's all-reduces on MPI, NCCL or Gloo, and carries control."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from tf_libra.backends import backend, horovod_fusion, nccl_environment, nccl_tuner
from tf_libra.backends.external_op_backend import ExternalOpBackend
from tf_libra.planning.strategy import Strategy
from tf_libra.specs.plan import Plan

_AUTOTUNE = "HOROVOD_AUTOTUNE"


@backend.register
@dataclass(frozen=True)
class Horovod(ExternalOpBackend):
    """Backend on Horovod's grouped all-reduce; NCCL applies thread counts if it is prepared."""

    name: ClassVar[str] = "horovod"
    op: ClassVar[str] = "HorovodGroupedAllreduce"

    def default_threads(self, strategy: Strategy) -> Strategy:
        """Returns the strategy with the thread counts of NCCL, if NCCL is in use.

        A strategy that does not choose threads gets the largest count, which is NCCL's default.

        Raises:
            ValueError: NCCL's settings leave no thread counts.
        """
        if not nccl_environment.in_use():
            return strategy
        counts = nccl_environment.default_threads()
        return strategy.with_threads(counts if strategy.chooses_threads else counts[-1:])

    def applicable(self, strategy: Strategy) -> Strategy:
        """Returns the strategy with a single thread count, unless NCCL is in use.

        Raises:
            ValueError: NCCL does not support the thread counts.
        """
        if nccl_environment.in_use():
            nccl_environment.threads_per_channel(strategy.allowed_threads)
            return strategy
        return super().applicable(strategy)

    def agreed(self) -> Mapping[str, Any]:
        """Returns which component chooses NCCL's threads."""
        return {"threads for NCCL": nccl_environment.statement()}

    def begin_step(self) -> None:
        """Marks the step boundary by which NCCL's tuner finds the order of all-reduces."""
        nccl_tuner.announce_step()

    def apply(self, plan: Plan) -> None:
        """Forwards the plan's thread counts to NCCL, if NCCL is in use.

        Raises:
            ValueError: NCCL does not support the thread counts.
        """
        if nccl_environment.in_use():
            nccl_tuner.apply(plan)

    def warnings(self, plan: Plan) -> tuple[str, ...]:
        """Returns which of Horovod's settings conflict with the plan, and what to set."""
        return warnings(plan)

    def describe(self) -> str:
        """Returns whether the thread counts of plans are applied, and if not, why."""
        if nccl_environment.in_use():
            return "Horovod executes the plan; its thread counts are handed to NCCL"
        import horovod.tensorflow as hvd

        if hvd.nccl_built():
            why = "NCCL does not use them: call tf_libra.nccl.prepare() before hvd.init()"
        else:
            why = f"Horovod's {'Gloo' if hvd.gloo_enabled() else 'MPI'} takes no thread count"
        return f"Horovod executes the plan; its thread counts are not applied: {why}"


def warnings(plan: Plan, environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Returns which of Horovod's settings conflict with the plan, and what to set.

    Only one group is in flight at a time, so Horovod cannot fuse across groups. Horovod splits a
    group larger than its fusion buffer into several all-reduces, unless it is a single tensor.
    """
    fusion = horovod_fusion.from_environment(
        environment, on_gpu=nccl_environment.in_use(environment)
    )
    groups = [plan.num_bytes[group.start : group.stop] for group in plan.groups]
    largest = max((sum(map(fusion.padded, group)) for group in groups if len(group) > 1), default=0)
    if not largest:
        return ()
    found = []
    threshold = fusion.buffer_bytes
    if threshold is not None and largest > threshold:
        found.append(
            f"Horovod cuts groups of more than {threshold:,} bytes, and the plan's largest has"
            f" {largest:,}: set {horovod_fusion.THRESHOLD}={largest} or more before hvd.init()"
        )
    if environment.get(_AUTOTUNE, "0") not in ("", "0"):
        found.append(
            f"{_AUTOTUNE} is set, and Horovod may cut the plan's groups while it tries things out:"
            f" unset it and set {horovod_fusion.THRESHOLD} to {largest} or more"
        )
    return tuple(found)
