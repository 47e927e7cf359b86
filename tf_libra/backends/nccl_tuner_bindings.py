"""Python bindings of NCCL's tuner plugin (ops/nccl_tuner/c_api.h).

Requires neither TensorFlow nor NCCL. NCCL opens the same file, so this module and NCCL share one
loaded library.
"""

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Fields of TfLibraTunerCounts, in order.
COUNTS = (
    "interface_version",
    "communicators",
    "requests",
    "applied",
    "passed_over",
    "no_plan",
    "other_collective",
    "other_communicator",
    "unknown_size",
    "forwarded",
    "out_of_order",
    "without_ring",
)

# Return code for invalid input; 0 is success, other codes are other failures.
_INVALID = 1


class _Counts(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in COUNTS]


@dataclass(frozen=True)
class TunerLibrary:
    """Tuner plugin loaded in this process; created by `load`.

    Attributes:
        handle: the loaded library.
    """

    handle: ctypes.CDLL

    def set_plan(
        self, num_ranks: int, prefer_ring: bool, all_reduces: Sequence[tuple[int, int, int]]
    ) -> None:
        """Activates a plan atomically.

        Args:
            num_ranks: size of the communicators to which the plan applies.
            prefer_ring: whether NCCL uses its ring algorithm if possible.
            all_reduces: bytes, padded bytes and channels of each, in order; at least one.

        Raises:
            ValueError: the plugin rejects the plan.
            MemoryError: no memory for the plan; the previous plan stays active.
        """
        sizes, counts = ctypes.c_uint64 * len(all_reduces), ctypes.c_int * len(all_reduces)
        result = self.handle.TfLibraTunerSetPlan(
            num_ranks,
            int(prefer_ring),
            len(all_reduces),
            sizes(*(exact for exact, _, _ in all_reduces)),
            sizes(*(padded for _, padded, _ in all_reduces)),
            counts(*(channels for _, _, channels in all_reduces)),
        )
        if result == _INVALID:
            raise ValueError(self._last_error())
        self._check(result)

    def _last_error(self) -> str:
        return str(self.handle.TfLibraTunerLastError().decode(errors="replace"))

    def _check(self, result: int) -> None:
        if result:
            raise MemoryError(f"NCCL's tuner plugin: {self._last_error()}")

    def clear_plan(self) -> None:
        """Leaves every collective to NCCL."""
        self._check(self.handle.TfLibraTunerClearPlan())

    def begin_step(self) -> None:
        """Says that the next all-reduce is the first of a step."""
        self._check(self.handle.TfLibraTunerBeginStep())

    def counts(self) -> dict[str, int]:
        """Returns the counts of NCCL's requests and of the answers: one for each of `COUNTS`."""
        counts = _Counts()
        self._check(self.handle.TfLibraTunerReadCounts(ctypes.byref(counts)))
        return {name: int(getattr(counts, name)) for name in COUNTS}

    def applied(self) -> tuple[int, ...]:
        """Returns how often each all-reduce of the active plan got its channels, in its order."""
        capacity = self._read_applied(None, 0)
        applied = (ctypes.c_int64 * capacity)()
        # A plan activated between the two calls may be shorter.
        length = min(capacity, self._read_applied(applied, capacity))
        return tuple(applied[:length])

    def _read_applied(self, applied: Any, capacity: int) -> int:
        length = int(self.handle.TfLibraTunerReadApplied(applied, capacity))
        self._check(length < 0)
        return length


@functools.cache
def load(path: Path) -> TunerLibrary:
    """Opens the plugin.

    Raises:
        ImportError: the plugin was not built.
    """
    if not path.exists():
        raise ImportError(f"{path.name} was not built; install tf-libra again")
    library = ctypes.CDLL(str(path))
    sizes = ctypes.POINTER(ctypes.c_uint64)
    prototypes: dict[str, tuple[Any, list[Any]]] = {
        "TfLibraTunerSetPlan": (
            ctypes.c_int,
            [*(3 * [ctypes.c_int]), sizes, sizes, ctypes.POINTER(ctypes.c_int)],
        ),
        "TfLibraTunerClearPlan": (ctypes.c_int, []),
        "TfLibraTunerBeginStep": (ctypes.c_int, []),
        "TfLibraTunerReadCounts": (ctypes.c_int, [ctypes.POINTER(_Counts)]),
        "TfLibraTunerReadApplied": (
            ctypes.c_int,
            [ctypes.POINTER(ctypes.c_int64), ctypes.c_int],
        ),
        "TfLibraTunerLastError": (ctypes.c_char_p, []),
    }
    for name, (result, arguments) in prototypes.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return TunerLibrary(library)
