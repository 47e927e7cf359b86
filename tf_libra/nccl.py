"""Thread counts for NCCL under Horovod: `prepare` before `hvd.init()`."""

from tf_libra.backends.nccl_tuner import (
    ChannelCounters,
    NcclAllReduce,
    NcclSettings,
    all_reduces,
    allowed_threads,
    apply,
    clear,
    counters,
    environment,
    in_use,
    prepare,
)

__all__ = [
    "ChannelCounters",
    "NcclAllReduce",
    "NcclSettings",
    "all_reduces",
    "allowed_threads",
    "apply",
    "clear",
    "counters",
    "environment",
    "in_use",
    "prepare",
]
