"""Compares how long ranks take to connect under TF-Libra's rendezvous and under Horovod.

    python -m benchmarks.connecting [--ranks 8,16,32,64] [--rounds 5]

Every rank is a process of this machine, forked from one that has imported TensorFlow, Horovod and
TF-Libra. It gets its variables, connects, and reports when it is done:

- `horovod`: `hvd.init()` over Gloo, with Horovod's rendezvous server in this program, as under
  `horovodrun`. Ranks fetch each other's addresses there, and connect all with all over TCP.
- `lanes over TCP`: `tf_libra.collectives.connect()` with the variables of `tf-libra run`, its
  secret included: ranks meet at rank 0, and connect lanes, messages and the control plane over TCP.
- `lanes`: the same over Unix sockets and shared memory, as ranks of one host do by default.

The methods take turns, round by round. Reported are medians over the rounds of the seconds from the
first rank's variables until the last rank is connected, and the ratio to Horovod within rounds.
Horovod's ranks look for work every 100 ms instead of every millisecond: those that are connected
already would otherwise keep the shared cores busy.
"""

import contextlib
import gc
import importlib
import json
import os
import random
import secrets
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from absl import app, flags

from benchmarks import rendezvous_env
from benchmarks.machine import machine, versions
from benchmarks.markdown import table

HOROVOD = "horovod"
TIMEOUT_SECONDS = 300.0

Environments = contextlib.AbstractContextManager[list[dict[str, str]]]


def _connect_horovod() -> tuple[int, int]:
    import horovod.tensorflow as hvd

    hvd.init()
    return hvd.rank(), hvd.size()


def _connect_lanes() -> tuple[int, int]:
    import tf_libra
    from tf_libra import collectives

    collectives.connect(timeout_seconds=TIMEOUT_SECONDS)
    return tf_libra.rank(), tf_libra.size()


def _horovod_environments(num_ranks: int) -> Environments:
    return rendezvous_env.meeting(f"localhost:{num_ranks}", "127.0.0.1", "lo")


@contextlib.contextmanager
def _launched_environments(num_ranks: int) -> Iterator[list[dict[str, str]]]:
    """Yields the variables that `tf-libra run` sets."""
    address, _, port = rendezvous_env.free_addresses(1)[0].rpartition(":")
    job = {
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        "TF_LIBRA_SECRET": secrets.token_hex(16),
    }
    yield [job | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(num_ranks)]


@dataclass(frozen=True)
class Method:
    """A way to connect ranks.

    Attributes:
        environments: yields the variables of each rank, for as long as the job lasts.
        connect: connects this rank; returns rank and size.
        env: further variables of all ranks.
    """

    environments: Callable[[int], Environments]
    connect: Callable[[], tuple[int, int]]
    env: Mapping[str, str]


METHODS = {
    HOROVOD: Method(
        _horovod_environments,
        _connect_horovod,
        {
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_CYCLE_TIME": "100",
            "HOROVOD_GLOO_TIMEOUT_SECONDS": f"{TIMEOUT_SECONDS:.0f}",
        },
    ),
    "lanes over TCP": Method(_launched_environments, _connect_lanes, {"TF_LIBRA_INTERFACE": "lo"}),
    "lanes": Method(_launched_environments, _connect_lanes, {}),
}


def import_all() -> None:
    """Imports what ranks use, so that they share it and connect without reading files."""
    for name in ("horovod.tensorflow", "tf_libra.collectives", "tf_libra.ranks"):
        importlib.import_module(name)
    from tf_libra.internal import native

    native.load()
    gc.freeze()


def measure(method: Method, num_ranks: int) -> float:
    """Returns the seconds until the last of `num_ranks` new processes is connected.

    Raises:
        RuntimeError: a rank has failed; its error is on standard error.
    """
    children: list[int] = []
    lines: list[tuple[TextIO, TextIO]] = []
    try:
        for _ in range(num_ranks):
            read_stdin, write_stdin = os.pipe()
            read_time, write_time = os.pipe()
            sys.stdout.flush()
            child = os.fork()
            if child == 0:
                for stdin, connected in lines:  # those of other ranks
                    os.close(stdin.fileno())
                    os.close(connected.fileno())
                os.close(write_stdin)
                os.close(read_time)
                _be_rank(method, read_stdin, write_time)
            children.append(child)
            os.close(read_stdin)
            os.close(write_time)
            lines.append((os.fdopen(write_stdin, "w"), os.fdopen(read_time)))
        with method.environments(num_ranks) as environments:
            started = time.monotonic()
            for (stdin, _), env in zip(lines, environments, strict=True):
                print(json.dumps(dict(method.env) | env), file=stdin, flush=True)
            ended = [connected.readline() for _, connected in lines]
            for rank, line in enumerate(ended):
                if json.loads(line or "[]")[:2] != [rank, num_ranks]:
                    raise RuntimeError(f"rank {rank} of {num_ranks} has not connected: {line!r}")
            return max(json.loads(line)[2] for line in ended) - started
    finally:
        for stdin, connected in lines:
            stdin.close()  # ends the rank
            connected.close()
        for child in children:
            os.waitpid(child, 0)


def _be_rank(method: Method, read_stdin: int, write_time: int) -> None:
    """Connects when the variables come, says when it is done, and ends with its input."""
    status = 1
    try:
        with os.fdopen(read_stdin) as stdin, os.fdopen(write_time, "w") as times:
            line = stdin.readline()
            if line:
                os.environ.update(json.loads(line))
                rank, size = method.connect()
                print(json.dumps([rank, size, time.monotonic()]), file=times, flush=True)
                status = 0
                stdin.read()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)  # no rank waits for others at its end


def rows(seconds: Mapping[int, Mapping[str, Sequence[float]]]) -> list[list[str]]:
    """Returns the rows of the table.

    Args:
        seconds: by number of ranks, by method, of each round.
    """
    return [
        [
            str(num_ranks),
            *(f"{statistics.median(seconds):.2f}" for seconds in found.values()),
            *(
                f"{_median_ratio(seconds, found[HOROVOD]):.2f}"
                for name, seconds in found.items()
                if name != HOROVOD and HOROVOD in found
            ),
        ]
        for num_ranks, found in seconds.items()
    ]


def _median_ratio(numerators: Sequence[float], to: Sequence[float]) -> float:
    return statistics.median(
        numerator / other for numerator, other in zip(numerators, to, strict=True)
    )


def main(_: list[str]) -> None:
    import_all()
    sizes = sorted(int(text) for text in _RANKS.value)
    here = machine()
    seconds: dict[int, dict[str, list[float]]] = {
        num_ranks: {name: [] for name in _METHODS.value} for num_ranks in sizes
    }
    for _round in range(_ROUNDS.value):
        for num_ranks in sizes:
            for name in random.sample(_METHODS.value, len(_METHODS.value)):
                found = measure(METHODS[name], num_ranks)
                seconds[num_ranks][name].append(found)
                print(f"{num_ranks} ranks, {name}: {found:.2f} s", file=sys.stderr)
    print(f"{here['cpu']}, {here['cores']} cores, load average {here['load_average']:.1f}\n")
    head = ["ranks", *(f"{name}, s" for name in _METHODS.value)]
    if HOROVOD in _METHODS.value:
        head += [f"{name} / {HOROVOD}" for name in _METHODS.value if name != HOROVOD]
    print(table(head, rows(seconds)))
    if _JSON.value:
        document = {"seconds": seconds, "machine": here, "versions": versions()}
        Path(_JSON.value).write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    _RANKS = flags.DEFINE_list("ranks", ["8", "16", "32", "64"], "Numbers of ranks.")
    _METHODS = flags.DEFINE_multi_enum("methods", list(METHODS), list(METHODS), "Which to measure.")
    _ROUNDS = flags.DEFINE_integer("rounds", 5, "Jobs of each method.", lower_bound=1)
    _JSON = flags.DEFINE_string("json", None, "File to write what was measured to.")
    app.run(main)
