"""The tuner plugin as it is shipped: called by its C ABI as NCCL does, set by Python."""

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tf_libra.backends import horovod_fusion, nccl_environment, nccl_tuner
from tf_libra.specs.plan import Plan, TensorGroup

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = range(1, 7)
ALL_REDUCE, BROADCAST = 4, 0
ALGORITHMS, PROTOCOLS = 7, 3
RING, SIMPLE = 1, 2
RANKS = 8
PER_CHANNEL = 128

_OUT = ctypes.POINTER(ctypes.c_int)
_CONTEXT_OUT = ctypes.POINTER(ctypes.c_void_p)
_RESULT = ctypes.c_int
_SIZE = ctypes.c_size_t
_POINTER = ctypes.c_void_p
_INT = ctypes.c_int
_NAME = ("name", ctypes.c_char_p)

# NCCL's own declarations, written down a second time: init, getCollInfo, destroy or finalize.
_INIT = {
    1: [_SIZE, _SIZE, _POINTER],
    2: [_SIZE, _SIZE, _POINTER, _CONTEXT_OUT],
    5: [_CONTEXT_OUT, ctypes.c_uint64, _SIZE, _SIZE, _POINTER, _POINTER, _POINTER],
}
_INIT |= {3: _INIT[2], 4: _INIT[2], 6: _INIT[5]}
_ASK = {
    1: [_INT, _SIZE, _INT, _INT, _INT, _OUT, _OUT, _OUT],
    2: [_POINTER, _INT, _SIZE, _INT, _INT, _INT, _OUT, _OUT, _OUT],
    3: [_POINTER, _INT, _SIZE, _INT, _POINTER, _INT, _INT, _OUT],
    4: [_POINTER, _INT, _SIZE, _INT, _POINTER, _INT, _INT, _INT, _OUT],
}
_ASK |= {5: _ASK[4], 6: _ASK[4]}


def _table(version: int) -> type[ctypes.Structure]:
    end = [] if version == 1 else [_POINTER]
    members = [
        _NAME,
        ("init", ctypes.CFUNCTYPE(_RESULT, *_INIT[version])),
        ("ask", ctypes.CFUNCTYPE(_RESULT, *_ASK[version])),
        ("end", ctypes.CFUNCTYPE(_RESULT, *end)),
    ]
    if version == 6:
        members.append(("chunk_size", _POINTER))
    return type(f"TunerV{version}", (ctypes.Structure,), {"_fields_": members})


class FakeNccl:
    """A communicator, by one version of the interface."""

    def __init__(self, version: int, num_ranks: int = RANKS) -> None:
        # As NCCL does it: the file is opened once more, by its path.
        library = ctypes.CDLL(str(nccl_environment.PATH), mode=ctypes.RTLD_LOCAL)
        self._version = version
        self._tuner = _table(version).in_dll(library, f"ncclTunerPlugin_v{version}")
        self._context = ctypes.c_void_p()
        arguments: list[object] = [num_ranks, 2, None]
        if version >= 2:
            arguments.append(ctypes.byref(self._context))
        if version >= 5:
            arguments = [ctypes.byref(self._context), 7, num_ranks, 2, None, None, None]
        assert self._tuner.init(*arguments) == 0
        self.name = self._tuner.name
        if version == 6:
            assert self._tuner.chunk_size is None

    def ask(self, num_bytes: int, collective: int = ALL_REDUCE) -> tuple[int, list[float]]:
        """Returns the channels that the plugin sets (0: none), and the costs afterwards."""
        costs = (ctypes.c_float * (ALGORITHMS * PROTOCOLS))(*([9.0] * (ALGORITHMS * PROTOCOLS)))
        channels, algorithm, protocol = ctypes.c_int(0), ctypes.c_int(-1), ctypes.c_int(-1)
        question = [collective, num_bytes]
        if self._version <= 2:
            question += [0, 0, 1, algorithm, protocol]
        else:
            question += [1, ctypes.addressof(costs), ALGORITHMS, PROTOCOLS]
        if self._version >= 4:
            question.append(0)
        if self._version >= 2:
            question.insert(0, self._context)
        assert self._tuner.ask(*question, channels) == 0
        assert (algorithm.value, protocol.value) == (-1, -1)
        return channels.value, list(costs)

    def end(self) -> None:
        assert self._tuner.end(*([] if self._version == 1 else [self._context])) == 0


def make_plan(*groups: tuple[int, int], num_workers: int = RANKS) -> Plan:
    """A plan of groups of one tensor each: bytes and threads."""
    return Plan(
        groups=tuple(TensorGroup(i, i + 1, threads) for i, (_, threads) in enumerate(groups)),
        tensor_names=tuple(f"t{i}" for i in range(len(groups))),
        num_bytes=tuple(num_bytes for num_bytes, _ in groups),
        num_workers=num_workers,
        strategy="test",
    )


def activate(plan: Plan) -> None:
    nccl_tuner.apply(plan, threads_per_channel=PER_CHANNEL, fusion=horovod_fusion.Fusion())


@pytest.fixture(autouse=True)
def no_plan() -> Iterator[None]:
    """Before and after: the library is one per process."""
    nccl_tuner.clear()
    yield
    nccl_tuner.clear()
    assert nccl_tuner.counters().communicators == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_every_interface_gives_a_plans_channels(version: int) -> None:
    activate(make_plan((4096, 256), (4096, 1024), (8192, 4096)))
    nccl = FakeNccl(version)
    assert nccl.name == b"tf-libra"
    for _ in range(3):
        assert [nccl.ask(n)[0] for n in (4096, 4096, 8192)] == [2, 8, 32]
    counters = nccl_tuner.counters()
    assert counters.all_reduces == (3, 3, 3)
    assert counters.interface_version >= version
    nccl.end()


@pytest.mark.parametrize("version", VERSIONS)
def test_costs_are_changed_in_one_cell_or_not_at_all(version: int) -> None:
    activate(make_plan((4096, 256)))
    nccl = FakeNccl(version)
    changed = [9.0] * (ALGORITHMS * PROTOCOLS)
    if version >= 3:
        changed[RING * PROTOCOLS + SIMPLE] = 0.0
    assert nccl.ask(4096)[1] == changed
    for question in ((4097, ALL_REDUCE), (4096, BROADCAST)):
        assert nccl.ask(*question) == (0, [9.0] * (ALGORITHMS * PROTOCOLS))
    nccl.end()


def test_counters_add_up() -> None:
    before = nccl_tuner.counters()
    nccl, other = FakeNccl(6), FakeNccl(6, num_ranks=2)
    nccl.ask(1)
    activate(make_plan((4096, 256), (8192, 256)))
    nccl.ask(4096)
    nccl.ask(4096)
    nccl.ask(1)
    nccl.ask(4096, BROADCAST)
    other.ask(4096)
    after = nccl_tuner.counters()
    grown = {
        name: getattr(after, name) - getattr(before, name)
        for name in vars(after)
        if name not in ("interface_version", "all_reduces")
    }
    assert grown == {
        "communicators": 2,
        "requests": 6,
        "applied": 2,
        "passed_over": 4,
        "no_plan": 1,
        "other_collective": 1,
        "other_communicator": 1,
        "unknown_size": 1,
        "forwarded": 0,
        "out_of_order": 1,
        "without_ring": 0,
    }
    nccl.end()
    other.end()


def test_a_group_is_found_as_horovod_fuses_it() -> None:
    plan = Plan(
        groups=(TensorGroup(0, 3, 256), TensorGroup(3, 4, 512)),
        tensor_names=("a", "b", "c", "d"),
        num_bytes=(4, 20, 16, 12),
        num_workers=RANKS,
        strategy="test",
    )
    nccl = FakeNccl(4)
    nccl_tuner.apply(
        plan,
        threads_per_channel=PER_CHANNEL,
        fusion=horovod_fusion.from_environment({}, on_gpu=True),
    )
    assert nccl.ask(16 + 32 + 16)[0] == 2
    assert nccl.ask(12)[0] == 4  # alone it is not copied
    assert nccl.ask(4 + 20 + 16)[0] == 2
    assert nccl.ask(16)[0] == 0
    nccl.end()


def test_a_swap_from_another_thread_is_whole() -> None:
    low = make_plan(*[(4096, 128)] * 5)
    high = make_plan(*[(4096, 256)] * 5)
    activate(low)
    done = threading.Event()
    swaps = 0

    def swap() -> None:
        nonlocal swaps
        while not done.is_set():
            activate((high, low)[swaps % 2])
            nccl_tuner.begin_step()
            swaps += 1

    nccl = FakeNccl(5)
    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        answers = {nccl.ask(4096)[0] for _ in range(20_000)}
        while swaps < 3:
            answers.add(nccl.ask(4096)[0])
    finally:
        done.set()
        swapper.join()
    assert answers <= {1, 2}
    nccl.end()


def test_rejected_plan_leaves_the_active_plan() -> None:
    activate(make_plan((4096, 256)))
    nccl = FakeNccl(6)
    with pytest.raises(ValueError, match=r"groups\[0\].num_threads .* got 192"):
        activate(make_plan((4096, 192)))
    with pytest.raises(ValueError, match=r"num_channels\[0\] must be from 1 to 1024, got 2048"):
        activate(make_plan((4096, 2048 * PER_CHANNEL)))
    assert nccl.ask(4096)[0] == 2
    nccl.end()


def test_the_library_needs_neither_tensorflow_nor_nccl() -> None:
    """Its exports are those that NCCL and Python look for; its dependencies are on any Linux."""
    script = f"""
import ctypes, sys
library = ctypes.CDLL({str(nccl_environment.PATH)!r})
for version in range(1, 7):
    ctypes.c_char_p.in_dll(library, f"ncclTunerPlugin_v{{version}}")
from tf_libra.backends import nccl_environment, nccl_tuner
nccl_tuner.counters()
assert "tensorflow" not in sys.modules and "horovod" not in sys.modules
mapped = open("/proc/self/maps").read()
assert "tensorflow" not in mapped and "libcuda" not in mapped and "libnccl.so" not in mapped
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


NEXT_TUNER = """
#include <stddef.h>
static int alive;
static int begin(size_t ranks, size_t nodes, void* log, void** context) {
  *context = &alive;
  ++alive;
  return 0;
}
static int ask(void* context, int collective, size_t bytes, int aggregated, float* costs,
               int algorithms, int protocols, int* channels) {
  *channels = 20 + collective;
  costs[0] = 0;
  return context == &alive ? 0 : 3;
}
static int end(void* context) { return --alive; }
struct { const char* name; void *init, *ask, *end; } ncclTunerPlugin_v3 = {
    "other", (void*)begin, (void*)ask, (void*)end};
"""


def test_next_tuner_gets_what_the_plan_does_not_know(tmp_path: Path) -> None:
    (tmp_path / "next.c").write_text(NEXT_TUNER)
    library = tmp_path / "next.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, tmp_path / "next.c"], check=True)
    # The plugin reads the variable once in a process.
    script = """
from tests.ops import test_nccl_tuner as tests
tests.activate(tests.make_plan((4096, 256)))
for version in tests.VERSIONS:
    nccl = tests.FakeNccl(version)
    requests = [(4096, 4), (4097, 4), (4096, 0)]
    print([nccl.ask(*one)[0] for one in requests], nccl.ask(1)[1][0])
    nccl.end()
print(tests.nccl_tuner.counters().forwarded)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env=os.environ | {"TF_LIBRA_NCCL_NEXT_TUNER": str(library)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    alone, chained = "[2, 0, 0] 9.0", "[2, 24, 20] 0.0"
    # It has version 3 alone, which serves every later one.
    assert done.stdout.splitlines() == [alone, alone, *[chained] * 4, "12"]
