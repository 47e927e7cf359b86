"""Fusion of a group of tensors into buffers, and its settings, as in Horovod 0.28.1.

Horovod's sources: `BackgroundThreadLoop` (operations.cc), `Controller::TensorFusionThresholdBytes`
and `Controller::FuseResponses` (controller.cc).
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

THRESHOLD = "HOROVOD_FUSION_THRESHOLD"
_DEFAULT_BYTES = 128 * 2**20
# 64 elements of float64 per rank of a host.
_UNIT_BYTES = 512
_GPU_PADDING = 16


@dataclass(frozen=True)
class Fusion:
    """Layout of a group's tensors in one buffer for their all-reduce.

    Attributes:
        buffer_bytes: size of the buffer; a larger group becomes several all-reduces. None for no
            limit.
        padding: sizes of tensors that share a buffer are rounded up to a multiple of it.
    """

    buffer_bytes: int | None = None
    padding: int = 1

    def padded(self, num_bytes: int) -> int:
        """Returns the bytes that a tensor takes in a buffer that it shares with others."""
        return -(-num_bytes // self.padding) * self.padding

    def parts(self, num_bytes: Sequence[int]) -> list[list[int]]:
        """Splits tensors into all-reduces of as many as fit into the buffer, in order."""
        parts: list[list[int]] = []
        filled = 0
        for tensor_bytes in num_bytes:
            padded = self.padded(tensor_bytes)
            if parts and (self.buffer_bytes is None or filled + padded <= self.buffer_bytes):
                parts[-1].append(tensor_bytes)
                filled += padded
            else:
                parts.append([tensor_bytes])
                filled = padded
        return parts


def from_environment(environ: Mapping[str, str] = os.environ, *, on_gpu: bool) -> Fusion:
    """Returns Horovod's fusion under these environment variables.

    Horovod rounds the buffer up to a multiple of the ranks of a host. It parses the leading number
    of a value, and 0 if there is none: "64MB" means 64 bytes.

    Args:
        environ: the environment at `hvd.init()`.
        on_gpu: whether the tensors are on a GPU, where a batched copy pads them.
    """
    unit = _UNIT_BYTES * max(1, _number(environ, "HOROVOD_LOCAL_SIZE", 1))
    buffer_bytes = max(0, -(-_number(environ, THRESHOLD, _DEFAULT_BYTES) // unit) * unit)
    is_batched = on_gpu and _number(environ, "HOROVOD_BATCH_D2D_MEMCOPIES", 1) != 0
    return Fusion(buffer_bytes, _GPU_PADDING if is_batched else 1)


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    """Parses a variable as C's strtol does."""
    text = environ.get(name)
    if text is None:
        return default
    found = re.match(r"\s*([+-]?[0-9]+)", text)
    return int(found[1]) if found else 0
