"""Plans for NCCL's tuner plugin, and the plugin's counters of requests.

The plugin `libnccl-tuner-libra.so` (ops/nccl_tuner) sets the channels of each all-reduce. NCCL
loads it into this process, and `apply` passes it a plan. `nccl_environment` sets NCCL_NTHREADS.
Importing this module loads neither TensorFlow nor NCCL.
"""

from dataclasses import dataclass

from tf_libra.backends import horovod_fusion, nccl_environment, nccl_tuner_bindings
from tf_libra.backends.horovod_fusion import Fusion
from tf_libra.backends.nccl_environment import PATH
from tf_libra.specs.plan import Plan, check_whole_tensors


@dataclass(frozen=True)
class NcclAllReduce:
    """An all-reduce that Horovod requests from NCCL.

    Attributes:
        group: index of the plan's group.
        num_bytes: total size of its tensors.
        padded_bytes: their total size in the fusion buffer.
        num_channels: number of channels.
    """

    group: int
    num_bytes: int
    padded_bytes: int
    num_channels: int


@dataclass(frozen=True)
class ChannelCounters:
    """Counts of NCCL's requests to the tuner since the process started.

    Attributes:
        interface_version: tuner interface that NCCL uses; 0 if it has sent no request.
        communicators: number that exist.
        requests: number of requests, each either applied or passed over.
        applied: requests that got the plan's channels.
        passed_over: requests left to NCCL, for one of the next four reasons.
        no_plan: no plan was active.
        other_collective: the collective is no all-reduce.
        other_communicator: the number of ranks differs from the plan's.
        unknown_size: the plan has no all-reduce of this size.
        forwarded: requests passed over that went to the next tuner (TF_LIBRA_NCCL_NEXT_TUNER).
        out_of_order: applied to another all-reduce than the next one of the plan.
        without_ring: applied although NCCL offered no ring algorithm, so NCCL_NTHREADS does not
            give the threads per channel.
        all_reduces: number of applications of each all-reduce of the active plan, in plan order.
    """

    interface_version: int
    communicators: int
    requests: int
    applied: int
    passed_over: int
    no_plan: int
    other_collective: int
    other_communicator: int
    unknown_size: int
    forwarded: int
    out_of_order: int
    without_ring: int
    all_reduces: tuple[int, ...] = ()

    def describe(self) -> str:
        """Returns one line."""
        if self.interface_version == 0:
            return "NCCL has sent no request to the tuner yet"
        text = (
            f"NCCL sent {self.requests} requests (tuner interface v{self.interface_version}):"
            f" {self.applied} got the plan's channels, {self.passed_over} were left to NCCL"
        )
        reasons = (
            (self.no_plan, "before there was a plan"),
            (self.other_collective, "for other collectives"),
            (self.other_communicator, "among other ranks"),
            (self.unknown_size, "of a size that is not in the plan"),
            (self.forwarded, "forwarded to the next tuner"),
            (self.out_of_order, "of the plan's out of order"),
            (self.without_ring, "of the plan's without a ring"),
        )
        parts = [f"{count} {reason}" for count, reason in reasons if count]
        return f"{text} ({', '.join(parts)})" if parts else text


def all_reduces(plan: Plan, threads_per_channel: int, fusion: Fusion) -> tuple[NcclAllReduce, ...]:
    """Returns the all-reduces of NCCL in one step of a plan, in order.

    A group is one all-reduce per dtype. A group larger than the fusion buffer becomes several
    all-reduces, each with as many tensors as fit. Groups of 0 bytes are not launched.

    Raises:
        ValueError: a group's threads are not a multiple of `threads_per_channel`, or the plan
            splits tensors.
    """
    check_whole_tensors(plan, "Horovod on NCCL")
    requests = []
    for index, group in enumerate(plan.groups):
        if group.num_threads % threads_per_channel:
            raise ValueError(
                f"groups[{index}].num_threads must be a multiple of NCCL_NTHREADS"
                f" ({threads_per_channel}), got {group.num_threads}"
            )
        channels = group.num_threads // threads_per_channel
        by_dtype: dict[str | None, list[int]] = {}
        for tensor in range(group.start, group.stop):
            dtype = None if plan.dtypes is None else plan.dtypes[tensor]
            by_dtype.setdefault(dtype, []).append(plan.num_bytes[tensor])
        for sizes in by_dtype.values():
            for part in fusion.parts(sizes):
                exact = sum(part)
                padded = exact if len(part) == 1 else sum(map(fusion.padded, part))
                if exact:
                    requests.append(NcclAllReduce(index, exact, padded, channels))
    return tuple(requests)


def apply(
    plan: Plan,
    *,
    threads_per_channel: int | None = None,
    fusion: Fusion | None = None,
    prefer_ring: bool = True,
) -> None:
    """Activates a plan atomically.

    Call it between the same two steps on every rank: ranks that run an all-reduce with different
    numbers of channels deadlock.

    Args:
        plan: for the number of ranks of the job.
        threads_per_channel: None for NCCL_NTHREADS of the environment.
        fusion: how groups become all-reduces; None for Horovod's fusion.
        prefer_ring: whether NCCL 2.22 or later should use its ring algorithm if possible. Its
            channels have NCCL_NTHREADS threads; those of trees and NVLS have other numbers.

    Raises:
        ImportError: the plugin was not built.
        ValueError: a group's threads are not a multiple of `threads_per_channel`.
    """
    if threads_per_channel is None:
        threads_per_channel = nccl_environment.current_threads_per_channel()
    if fusion is None:
        fusion = horovod_fusion.from_environment(on_gpu=True)
    requests = all_reduces(plan, threads_per_channel, fusion)
    library = nccl_tuner_bindings.load(PATH)
    if not requests:
        library.clear_plan()
        return
    library.set_plan(
        plan.num_workers,
        prefer_ring,
        [(request.num_bytes, request.padded_bytes, request.num_channels) for request in requests],
    )


def clear() -> None:
    """Deactivates the plan, so that NCCL chooses all channels.

    Raises:
        ImportError: the plugin was not built.
    """
    nccl_tuner_bindings.load(PATH).clear_plan()


def begin_step() -> None:
    """Announces that the next all-reduce is the first of a step.

    After an interrupted step the plugin finds its place in the plan by the sizes of groups. This
    call finds it if groups have equal sizes. Call it on every rank before the same steps.

    Raises:
        ImportError: the plugin was not built.
    """
    nccl_tuner_bindings.load(PATH).begin_step()


def announce_step() -> None:
    """Calls `begin_step` if NCCL of this process uses the plugin."""
    if nccl_environment.in_use():
        begin_step()


def counters() -> ChannelCounters:
    """Returns the counts of NCCL's requests and answers so far.

    Raises:
        ImportError: the plugin was not built.
    """
    library = nccl_tuner_bindings.load(PATH)
    return ChannelCounters(**library.counts(), all_reduces=library.applied())
