"""Thread counts for NCCL under Horovod: `prepare` before `hvd.init()`."""

from tf_libra.backends.nccl_environment import (
    NcclSettings,
    allowed_threads,
    environment,
    in_use,
    prepare,
)
from tf_libra.backends.nccl_tuner import (
    ChannelCounters,
    NcclAllReduce,
    all_reduces,
    apply,
    clear,
    counters,
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
