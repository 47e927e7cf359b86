"""Lanes against Gloo: python -m benchmarks.transport [--rounds N] [--nogloo] [--json out.json].

And what goes over the links between hosts: python -m benchmarks.transport --hosts 8.

Two processes of one host, one core each, all-reduce with 1, 2 and 4 connections: lanes through
shared memory (as ranks of one host do), lanes over Unix sockets (as they do where they are refused
such memory), lanes over TCP on loopback, Gloo over TCP on loopback. Gloo is the one in Horovod's
sdist, which pip downloads and CMake builds. All are measured in one run, round by round, and each
round gives, per transport, size and thread count:

- alone: seconds per all-reduce;
- cpu: seconds of CPU time per all-reduce and process;
- overlapped: seconds per all-reduce while another thread computes on the same core;
- slowdown: how many times slower that thread is than without communication.

Reported are medians over rounds, and the medians of paired ratios: of shared memory to Unix
sockets, and of lanes to Gloo.

With `--hosts` nothing is timed: bytes per link and connections per rank of one all-reduce are
counted (`benchmarks/links.py`), on a grid of so many hosts that are pretended, with
`--ranks_per_host` ranks each, and where nobody knows of hosts.
"""

import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path

from absl import app, flags

from benchmarks import links, native

HOROVOD = "horovod==0.28.1"
# Of the first to the second.
RATIOS = (
    ("lanes-memory", "lanes-unix"),
    ("lanes-memory", "gloo"),
    ("lanes-unix", "gloo"),
    ("lanes-tcp", "gloo"),
)
COLUMNS = ("alone", "cpu", "overlapped", "slowdown")


def build_gloo() -> tuple[str, ...]:
    """Builds Gloo, once; returns what the compiler is to be told of it."""
    build = native.folder_of("transport")
    gloo = build / "gloo"
    if not (gloo / "lib" / "gloo" / "libgloo.a").exists():
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            command += ["--no-binary=:all:", "--no-build-isolation", "-d", folder, HOROVOD]
            subprocess.run(command, check=True)
            with tarfile.open(next(Path(folder).glob("horovod-*.tar.gz"))) as archive:
                archive.extractall(build, filter="data")
        source = next(build.glob("horovod-*/third_party/gloo"))
        options = ["-DBUILD_TEST=OFF", "-DBUILD_BENCHMARK=OFF", "-DCMAKE_BUILD_TYPE=Release"]
        options += ["-DCMAKE_CXX_STANDARD=17", "-DCMAKE_POLICY_VERSION_MINIMUM=3.5"]
        subprocess.run(["cmake", "-S", source, "-B", gloo / "lib", *options], check=True)
        subprocess.run(["cmake", "--build", gloo / "lib", "-j", "2"], check=True)
        (gloo / "source").unlink(missing_ok=True)
        (gloo / "source").symlink_to(source)
    options = ["-DTF_LIBRA_WITH_GLOO", f"-I{gloo / 'source'}", f"-I{gloo / 'lib'}"]
    return (*options, str(gloo / "lib" / "gloo" / "libgloo.a"))


def count_links() -> None:
    program = native.build("scaling")
    counted = [
        links.count(
            program,
            _HOSTS.value,
            _RANKS_PER_HOST.value,
            _LANES.value,
            _BYTES.value,
            is_grid,
        )
        for is_grid in (True, False)
    ]
    print(links.table(counted))
    if _JSON.value:
        Path(_JSON.value).write_text(json.dumps([asdict(one) for one in counted], indent=1))


def main(_: list[str]) -> None:
    if _HOSTS.value:
        count_links()
        return
    program = native.build("transport", build_gloo() if _GLOO.value else ())
    with tempfile.TemporaryDirectory() as folder:
        for lane in range(4):
            Path(folder, str(lane)).mkdir()
        arguments = [folder, str(_ROUNDS.value), str(_REPETITIONS.value)]
        output = subprocess.run(
            [program, *arguments], check=True, stdout=subprocess.PIPE, text=True
        ).stdout
    cases: dict[tuple[int, int], dict[str, list[list[float]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for line in output.splitlines():
        transport, size, threads, *figures = line.split()
        cases[int(size), int(threads)][transport].append([float(figure) for figure in figures])
    print("| bytes | threads | | alone ms | CPU ms | overlapped ms | slowdown |")
    print("|---|---|---|---|---|---|---|")
    for (size, threads), by_transport in cases.items():
        for transport, rounds in by_transport.items():
            medians = [statistics.median(column) for column in zip(*rounds, strict=True)]
            cells = [f"{value * 1e3:.2f}" for value in medians[:3]] + [f"x{medians[3]:.2f}"]
            print(f"| {size} | {threads} | {transport} | {' | '.join(cells)} |")
        for first, second in RATIOS:
            if second not in by_transport:
                continue
            pairs = zip(by_transport[first], by_transport[second], strict=True)
            ratios = [[x / y for x, y in zip(*pair, strict=True)] for pair in pairs]
            medians = [statistics.median(column) for column in zip(*ratios, strict=True)]
            cells = " | ".join(f"{median:.2f}" for median in medians)
            print(f"| {size} | {threads} | {first}/{second} | {cells} |")
    if _JSON.value:
        rows = [
            {"bytes": size, "threads": threads, "transport": name, "rounds": rounds}
            for (size, threads), by_transport in cases.items()
            for name, rounds in by_transport.items()
        ]
        document = {"columns": COLUMNS, "cpus": os.cpu_count(), "cases": rows}
        Path(_JSON.value).write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    _ROUNDS = flags.DEFINE_integer("rounds", 9, "Rounds over all cases.", lower_bound=1)
    _REPETITIONS = flags.DEFINE_integer(
        "repetitions", 20, "All-reduces per case and round.", lower_bound=1
    )
    _GLOO = flags.DEFINE_bool("gloo", True, "Whether Gloo is built and measured, too.")
    _HOSTS = flags.DEFINE_integer(
        "hosts", None, "Hosts that are pretended, to count what goes between them.", lower_bound=2
    )
    _RANKS_PER_HOST = flags.DEFINE_integer(
        "ranks_per_host", 8, "Ranks of each, to count.", lower_bound=1
    )
    _LANES = flags.DEFINE_integer("lanes", 1, "Lanes of each rank, to count.", lower_bound=1)
    _BYTES = flags.DEFINE_integer(
        "bytes", 4 << 20, "All-reduced, to count; in whole floats.", lower_bound=4
    )
    _JSON = flags.DEFINE_string("json", None, "File to write all figures to.")
    app.run(main)
