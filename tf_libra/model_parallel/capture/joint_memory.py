"""Memory of a step of the joint batch, which one rank would need, and that its host has."""

from collections.abc import Iterator
from pathlib import Path

from tf_libra.internal import formatting
from tf_libra.model_parallel.capture.step_graph import StepGraph

# Their outputs are their inputs, or lie in a variable.
_ALIASES = frozenset(
    {"ExpandDims", "Identity", "IdentityN", "Placeholder", "ReadVariableOp", "Reshape", "Squeeze"}
)


def find_shortage(graph: StepGraph) -> str | None:
    """Returns that a step may not fit into this host's memory, in a clause; None if it fits.

    Args:
        graph: the step, traced for the joint batch.
    """
    needed, available = output_bytes(graph), available_bytes()
    if available is None or needed <= available:
        return None
    return (
        f"tensors of the joint batch may take {formatting.size(needed)}, and"
        f" {formatting.size(available)} of memory are available"
    )


def output_bytes(graph: StepGraph) -> int:
    """Returns the bytes of all outputs of known size, as if none was freed during the step."""
    total = 0
    for op in graph.ops:
        if op.type in _ALIASES:
            continue
        for tensor in op.outputs:
            num_elements = tensor.shape.num_elements()
            if num_elements is not None and tensor.dtype.size:
                total += num_elements * tensor.dtype.size
    return total


def available_bytes(root: Path = Path("/")) -> int | None:
    """Returns bytes that processes can allocate without swapping; None if the system cannot say.

    The least of the host's and those of the control group's limit, of version 2 or 1. Files that
    were read long ago count as available.

    Args:
        root: root of the file system.
    """
    return min(_candidates(root), default=None)


def _candidates(root: Path) -> Iterator[int]:
    host = _read(root / "proc/meminfo").get("MemAvailable:")
    if host is not None:
        yield host * 1024
    for folder, limit, usage, reclaimable in (
        ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
        (
            "sys/fs/cgroup/memory",
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "total_inactive_file",
        ),
    ):
        most, used = (_read_number(root / folder / name) for name in (limit, usage))
        if most is not None and used is not None:
            yield most - used + _read(root / folder / "memory.stat").get(reclaimable, 0)


def _read(path: Path) -> dict[str, int]:
    """Returns the first number of each line by the word before it."""
    words = [line.split() for line in _read_text(path).splitlines()]
    return {line[0]: int(line[1]) for line in words if len(line) > 1 and line[1].isdigit()}


def _read_number(path: Path) -> int | None:
    text = _read_text(path).strip()  # "max": no limit
    return int(text) if text.isdigit() else None


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
