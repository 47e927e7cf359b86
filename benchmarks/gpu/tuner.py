"""The NCCL tuner plugin (`ops/nccl_tuner`): built where it runs, controlled by its C API."""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tf_libra.backends import nccl_tuner_bindings

_ROOT = Path(__file__).resolve().parents[2]
_SOURCES = _ROOT / "ops" / "nccl_tuner"


def build(folder: Path) -> Path:
    """Compiles the plugin into a folder and returns its path.

    Raises:
      RuntimeError: there is no C++ compiler, or it failed; the text holds what it said.
    """
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        raise RuntimeError("no C++ compiler: neither $CXX nor c++ nor g++")
    library = folder / "libnccl-tuner-libra.so"
    sources = [str(p) for p in sorted(_SOURCES.glob("*.cc")) if not p.stem.endswith("_test")]
    if not sources:
        raise RuntimeError(f"there are no sources in {_SOURCES.relative_to(_ROOT)}")
    flags = ["-std=c++17", "-O2", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden"]
    done = subprocess.run(
        [compiler, *flags, f"-I{_ROOT}", *sources, "-o", str(library)],
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{compiler} failed with status {done.returncode}\n{done.stderr}")
    return library


class Tuner:
    """The plugin in this process, the same that NCCL loads by its path.

    Attributes:
      library: the loaded library.
    """

    def __init__(self, path: str, num_ranks: int = 2) -> None:
        self.library = nccl_tuner_bindings.load(Path(path))
        self._num_ranks = num_ranks
        self._plan: tuple[tuple[int, int], ...] = ()

    def begin_step(self, all_reduces: Sequence[tuple[int, int]]) -> None:
        """Announces a step's all-reduces as (bytes, channels), in order; none: NCCL chooses.

        Raises:
          ValueError: the plugin rejects the plan; the message is the plugin's.
        """
        plan = tuple(all_reduces)
        if plan == self._plan:
            self.library.begin_step()
            return
        if plan:
            # Nothing pads here: gradients lie side by side, as they are.
            self.library.set_plan(self._num_ranks, True, [(size, size, n) for size, n in plan])
        else:
            self.library.clear_plan()
        self._plan = plan

    def counters(self) -> dict[str, int]:
        """Returns counts of NCCL's requests and the plugin's answers (`ops/nccl_tuner/tuner.h`)."""
        return self.library.counts()


class StandIn:
    """Asks the plugin what NCCL asks it, through interface version 4, where there is no NCCL.

    For dry runs: everything but NCCL takes part.
    """

    _ALL_REDUCE = 4
    _ALGORITHMS = 7
    _PROTOCOLS = 3

    class _Interface(ctypes.Structure):
        _fields_ = (
            ("name", ctypes.c_char_p),
            (
                "init",
                ctypes.CFUNCTYPE(
                    ctypes.c_int,
                    ctypes.c_size_t,
                    ctypes.c_size_t,
                    ctypes.c_void_p,
                    ctypes.POINTER(ctypes.c_void_p),
                ),
            ),
            (
                "get_coll_info",
                ctypes.CFUNCTYPE(
                    ctypes.c_int,
                    ctypes.c_void_p,
                    ctypes.c_int,
                    ctypes.c_size_t,
                    ctypes.c_int,
                    ctypes.POINTER(ctypes.c_float),
                    ctypes.c_int,
                    ctypes.c_int,
                    ctypes.c_int,
                    ctypes.POINTER(ctypes.c_int),
                ),
            ),
            ("destroy", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)),
        )

    def __init__(self, tuner: Tuner, num_ranks: int) -> None:
        self._interface = self._Interface.in_dll(tuner.library.handle, "ncclTunerPlugin_v4")
        self._context = ctypes.c_void_p()
        self._interface.init(num_ranks, num_ranks, None, ctypes.byref(self._context))

    def line(self, num_bytes: int) -> str:
        """Returns the line that NCCL would log for an all-reduce that it queries the plugin for."""
        costs = (ctypes.c_float * (self._ALGORITHMS * self._PROTOCOLS))(
            *[1.0] * (self._ALGORITHMS * self._PROTOCOLS)
        )
        count = ctypes.c_int(0)
        self._interface.get_coll_info(
            self._context,
            self._ALL_REDUCE,
            num_bytes,
            1,
            costs,
            self._ALGORITHMS,
            self._PROTOCOLS,
            0,
            ctypes.byref(count),
        )
        chosen = count.value or 1
        return (
            f"NCCL INFO AllReduce: {num_bytes} Bytes -> Algo RING proto SIMPLE "
            f"channel{{Lo..Hi}}={{0..{chosen - 1}}}"
        )
