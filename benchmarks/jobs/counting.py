"""A background job that multiplies matrices and counts, in a file of eight bytes, how often.

python -m benchmarks.jobs.counting FILE
"""

import mmap
import struct
import sys
from pathlib import Path

import numpy as np

_SIZE = 192  # of the matrices: a step takes a millisecond or so


def read(path: Path) -> int:
    """Returns the number of steps that a job has made; 0 before its first."""
    if not path.exists():
        return 0
    data = path.read_bytes()
    return int(struct.unpack("<q", data)[0]) if len(data) == 8 else 0


def main(path: Path) -> None:
    """Counts until it is ended."""
    matrix = np.random.default_rng(0).random((_SIZE, _SIZE)) / _SIZE
    path.write_bytes(bytes(8))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 8) as counter:
        count = 0
        while True:
            matrix = matrix @ matrix.T
            matrix /= np.abs(matrix).max()
            count += 1
            counter[:] = struct.pack("<q", count)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
