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
        buffer_bytes: what the buffer holds; a larger group goes in several all-reduces. None for no
            limit.
        padding: a tensor's bytes are rounded up to a multiple of this, where there are several.
    """

    buffer_bytes: int | None = None
    padding: int = 1

    def padded(self, num_bytes: int) -> int:
        """Returns the bytes that a tensor takes in a buffer that it shares with others."""
        return -(-num_bytes // self.padding) * self.padding

    def parts(self, num_bytes: Sequence[int]) -> list[list[int]]:
        """Splits tensors into all-reduces: each takes as many as fit into the buffer, in order."""
        parts: list[list[int]] = []
        filled = 0
        for one in num_bytes:
            padded = self.padded(one)
            if parts and (self.buffer_bytes is None or filled + padded <= self.buffer_bytes):
                parts[-1].append(one)
                filled += padded
            else:
                parts.append([one])
                filled = padded
        return parts


def of_environment(environ: Mapping[str, str] = os.environ, *, on_gpu: bool) -> Fusion:
    """Returns the fusion that Horovod does under these variables.

    The buffer is rounded up, to be divisible among the ranks of a host. Horovod reads as much of a
    text as is a number, and zero where nothing is: "64MB" are 64 bytes.

    Args:
        environ: the environment at `hvd.init()`.
        on_gpu: whether the tensors are on a GPU, where one batch copies them, padded for that.
    """
    unit = _UNIT_BYTES * max(1, _number(environ, "HOROVOD_LOCAL_SIZE", 1))
    buffer_bytes = max(0, -(-_number(environ, THRESHOLD, _DEFAULT_BYTES) // unit) * unit)
    copied_at_once = on_gpu and _number(environ, "HOROVOD_BATCH_D2D_MEMCOPIES", 1) != 0
    return Fusion(buffer_bytes, _GPU_PADDING if copied_at_once else 1)


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    """As C's strtol reads it."""
    text = environ.get(name)
    if text is None:
        return default
    found = re.match(r"\s*([+-]?[0-9]+)", text)
    return int(found[1]) if found else 0
