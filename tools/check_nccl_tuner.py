"""Lets a real NCCL load the tuner plugin, without a GPU, and prints its interface and answers.

    python tools/check_nccl_tuner.py path/to/libnccl.so.2 [...]

NCCL loads tuners where a communicator is made, which takes a GPU. The functions that do it are not
exported, but stand in the symbol table of the libraries that NVIDIA publishes (the wheels
nvidia-nccl-cu12, nvidia-nccl-cu13), so they are called by their addresses. Needs `nm`. Not a test:
the libraries have hundreds of megabytes.
"""

import ctypes
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from tf_libra.backends import nccl_environment
from tf_libra.specs.plan import Plan, TensorGroup

# Loads the plugin by the environment: 2.19 and 2.20 by the first name.
LOADERS = ("ncclLoadTunerPlugin", "ncclTunerPluginLoad")
# Larger than any communicator of NCCL, of which the loaders read and write a few fields.
COMMUNICATOR_BYTES = 16 << 20
# From here on, adapters have the shape of `Newest`.
FIRST_NEWEST = 22800
ALGORITHMS, PROTOCOLS, RING, SIMPLE, ALL_REDUCE = 7, 3, 1, 2, 4


def symbols(library: Path) -> dict[str, int]:
    """Offsets of all functions, local ones too, by name without arguments."""
    listed = subprocess.run(["nm", "-C", library], capture_output=True, text=True, check=True)
    lines = (line.split(maxsplit=2) for line in listed.stdout.splitlines())
    # A wanted function is 't' or 'T'; parts that the compiler split off have a suffix.
    return {
        parts[2].partition("(")[0]: int(parts[0], 16)
        for parts in lines
        if len(parts) == 3 and parts[1] in "tT" and "[clone" not in parts[2]
    }


class Newest(ctypes.Structure):
    """First functions of the newest version, to which NCCL 2.28 and later adapt every version."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        (
            "init",
            ctypes.CFUNCTYPE(
                ctypes.c_int,
                ctypes.POINTER(ctypes.c_void_p),
                ctypes.c_uint64,
                ctypes.c_size_t,
                ctypes.c_size_t,
                ctypes.c_void_p,
                ctypes.c_void_p,
                ctypes.c_void_p,
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
                ctypes.c_void_p,
                ctypes.c_int,
                ctypes.c_int,
                ctypes.c_int,
                ctypes.POINTER(ctypes.c_int),
            ),
        ),
        ("finalize", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)),
    )


def ask(tuner: Newest) -> dict[str, int | bool]:
    """Returns the channels of two groups of one size, requested through NCCL's own adapter."""
    context = ctypes.c_void_p()
    # Its logger would be NCCL's; none is needed. The tables are room for what adapters may read.
    room = ctypes.create_string_buffer(1 << 16)
    assert tuner.init(ctypes.byref(context), 1, 2, 1, None, room, room) == 0
    answers: dict[str, int | bool] = {}
    for group in ("first", "second"):
        costs = (ctypes.c_float * (ALGORITHMS * PROTOCOLS))(*([50.0] * ALGORITHMS * PROTOCOLS))
        channels = ctypes.c_int(0)
        assert (
            tuner.get_coll_info(
                context, ALL_REDUCE, 4096, 1, costs, ALGORITHMS, PROTOCOLS, 0, channels
            )
            == 0
        )
        answers[group] = channels.value
        answers["ring"] = costs[RING * PROTOCOLS + SIMPLE] == 0
    assert tuner.finalize(context) == 0
    return answers


def check(library: Path) -> dict[str, object]:
    """Loads one NCCL into this process, lets it load the plugin, and asks."""
    offsets = symbols(library)
    nccl = ctypes.CDLL(str(library))
    address = ctypes.cast(nccl.pncclGetVersion, ctypes.c_void_p).value
    assert address is not None
    base = address - offsets["pncclGetVersion"]
    version = ctypes.c_int()
    nccl.ncclGetVersion(ctypes.byref(version))
    [loader] = [name for name in LOADERS if name in offsets]
    communicator = ctypes.create_string_buffer(COMMUNICATOR_BYTES)
    load = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(base + offsets[loader])
    assert load(communicator) == 0
    plugin = ctypes.CDLL(str(nccl.PATH))
    words = memoryview(communicator).cast("B").cast("P")
    tables = {
        ctypes.addressof(ctypes.c_char.in_dll(plugin, f"ncclTunerPlugin_v{v}")): v
        for v in range(1, 7)
    }
    # What NCCL now holds is a table of ours, or one that its adapter made of it.
    taken = [tables[word] for word in words if word in tables]
    result: dict[str, object] = {"nccl": version.value, "interface": taken}
    plan = Plan(
        groups=(TensorGroup(0, 1, 256), TensorGroup(1, 2, 1024)),
        tensor_names=("a", "b"),
        num_bytes=(4096, 4096),
        num_workers=2,
        strategy="check",
    )
    nccl.apply(plan, threads_per_channel=128)
    handle = ctypes.c_void_p(plugin._handle)
    for name in sorted(offsets):
        adapter = re.fullmatch(r"getNcclTuner_v(\d+)", name)
        if adapter is None or version.value < FIRST_NEWEST:
            continue
        get = ctypes.CFUNCTYPE(ctypes.POINTER(Newest), ctypes.c_void_p)(base + offsets[name])
        nccl.apply(plan, threads_per_channel=128)
        result[f"v{adapter[1]}"] = ask(get(handle).contents)
    return result


def main() -> None:
    """A process per library: two of them do not fit into one."""
    if os.environ.get("CHECK_NCCL_TUNER"):
        print(json.dumps(check(Path(sys.argv[1]))))
        return
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for path in sys.argv[1:]:
        env = {
            "CHECK_NCCL_TUNER": "1",
            "NCCL_TUNER_PLUGIN": str(nccl_environment.PATH),
            **os.environ,
        }
        done = subprocess.run([sys.executable, __file__, path], env=env)
        if done.returncode:
            print(f"{path}: failed with status {done.returncode}")


if __name__ == "__main__":
    main()
