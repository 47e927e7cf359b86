"""Speed of lanes: python -m benchmarks.transport [--rounds N] [--nogloo] [--json out.json].

Each round runs three programs, whose tables `--document docs/benchmarks.md` writes between the
marks of that page:

`sums.cc`: GB/s of output at which one core averages 2, 3, 4 and 8 contributions of each element
type; the best of all rounds.

`latencies.cc`: all-reduces among 2, 4 and 8 processes of this host, pinned to its cores in turn,
with one thread each. lanes-memory, lanes-unix and lanes-tcp are planned all-reduces through
shared memory, Unix sockets and TCP on loopback, in place; collectives is
`tf_libra.collectives.all_reduce`, in place as well; in sends each rank sends the bytes to the next
one, as `tf_libra.collectives.send` does; lanes-copy is a lane in shared memory whose output is
another buffer, so that it occupies as much memory as sends. A further table relates these three to
lanes-memory.
Reported are p50 and p99 of the latencies on rank 0 over all rounds, and CPU time per all-reduce:
the mean over processes, the median over rounds.

`transport.cc`: two processes, one core each, all-reduce with 1, 2 and 4 connections, by lanes and
by Gloo over TCP on loopback. Gloo is the one in Horovod's sdist, which pip downloads and CMake
builds. Reported are medians over rounds, and medians of paired ratios:

- alone: seconds per all-reduce;
- cpu: seconds of CPU time per all-reduce and process;
- overlapped: seconds per all-reduce while another thread computes on the same core;
- slowdown: how many times slower that thread is than without communication.

`--against REVISION` builds the lanes of another commit as well, runs both alternately in each
round, and prints the first two tables of both.

With `--hosts 8` the program counts instead: bytes per link and connections per rank of one
all-reduce (`benchmarks/links.py`), on a grid of simulated hosts with `--ranks_per_host` ranks
each, and without knowledge of hosts.
"""

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path

from absl import app, flags

from benchmarks import links, native, transport_report
from benchmarks.markdown import fill

HOROVOD = "horovod==0.28.1"
RANKS = (2, 4, 8)
COLUMNS = ("alone", "cpu", "overlapped", "slowdown")


def build_gloo() -> tuple[str, ...]:
    """Builds Gloo, once; returns the compiler's arguments for it."""
    build = native.folder_of("transport")
    gloo = build / "gloo"
    if not (gloo / "lib" / "gloo" / "libgloo.a").exists():
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            command += ["--no-binary=:all:", "--no-build-isolation", "-d", folder, HOROVOD]
            subprocess.run(command, check=True)
            with tarfile.open(next(Path(folder).glob("horovod-*.tar.gz"))) as archive:
                # Python has it from 3.11.4 on.
                archive.extraction_filter = getattr(tarfile, "data_filter", None)
                archive.extractall(build)
        source = next(build.glob("horovod-*/third_party/gloo"))
        options = ["-DBUILD_TEST=OFF", "-DBUILD_BENCHMARK=OFF", "-DCMAKE_BUILD_TYPE=Release"]
        options += ["-DCMAKE_CXX_STANDARD=17", "-DCMAKE_POLICY_VERSION_MINIMUM=3.5"]
        subprocess.run(["cmake", "-S", source, "-B", gloo / "lib", *options], check=True)
        subprocess.run(["cmake", "--build", gloo / "lib", "-j", "2"], check=True)
        (gloo / "source").unlink(missing_ok=True)
        (gloo / "source").symlink_to(source)
    options = ["-DTF_LIBRA_WITH_GLOO", f"-I{gloo / 'source'}", f"-I{gloo / 'lib'}"]
    return (*options, str(gloo / "lib" / "gloo" / "libgloo.a"))


def count_links(num_hosts: int) -> None:
    program = native.build("scaling")
    counted = [
        links.count(
            program,
            num_hosts,
            _RANKS_PER_HOST.value,
            _LANES.value,
            _BYTES.value,
            is_grid,
        )
        for is_grid in (True, False)
    ]
    print(links.table(counted))
    if _JSON.value:
        Path(_JSON.value).write_text(json.dumps([asdict(row) for row in counted], indent=1))


def run(program: Path, *arguments: object) -> str:
    """Runs one round of a program and returns its output."""
    command = [str(program), *map(str, arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=300)
    return done.stdout


def main(_: list[str]) -> None:
    if _HOSTS.value:
        count_links(_HOSTS.value)
        return
    roots: dict[str, Path | None] = {"": None}
    if _AGAINST.value:
        roots = {"": native.ROOT, _AGAINST.value: native.checkout(_AGAINST.value)}
    programs = {
        (name, label): native.build(name, root=root)
        for name in ("sums", "latencies")
        for label, root in roots.items()
    }
    overlapping = native.build("transport", build_gloo() if _GLOO.value else ())
    lines: dict[tuple[str, str], list[str]] = defaultdict(list)
    for _round in range(_ROUNDS.value):
        for label in roots:
            lines["sums", label].append(run(programs["sums", label]))
        for ranks in RANKS:
            for label in roots:
                output = run(programs["latencies", label], ranks, _REPETITIONS.value)
                lines["latencies", label].append(output)
        if not _AGAINST.value:
            with tempfile.TemporaryDirectory() as folder:
                for lane in range(4):
                    Path(folder, str(lane)).mkdir()
                lines["overlap", ""].append(run(overlapping, folder, _REPETITIONS.value))
    documents = {
        label: {
            "columns": COLUMNS,
            "cpus": len(os.sched_getaffinity(0)),
            "rounds": _ROUNDS.value,
            "overlap": transport_report.overlap_cases(lines["overlap", label]),
            "latencies": transport_report.latency_cases(lines["latencies", label]),
            "sums": transport_report.sum_cases(lines["sums", label]),
        }
        for label in roots
    }
    for label, document in documents.items():
        if label:
            print(f"at {label}:")
        print("\n".join(transport_report.blocks(document).values()))
    if _JSON.value:
        found = {**documents[""], "against": documents.get(_AGAINST.value or "-")}
        Path(_JSON.value).write_text(json.dumps(found, indent=1))
    if _DOCUMENT.value:
        page = Path(_DOCUMENT.value)
        page.write_text(
            fill(page.read_text(), transport_report.blocks(documents[""]), "transport_")
        )


if __name__ == "__main__":
    _ROUNDS = flags.DEFINE_integer("rounds", 5, "Rounds over all cases.", lower_bound=1)
    _REPETITIONS = flags.DEFINE_integer(
        "repetitions", 10, "All-reduces of 1 MiB per case and round.", lower_bound=1
    )
    _GLOO = flags.DEFINE_bool("gloo", True, "Whether Gloo is built and measured, too.")
    _AGAINST = flags.DEFINE_string("against", None, "A git revision to compare the lanes with.")
    _DOCUMENT = flags.DEFINE_string("document", None, "Page whose tables are written.")
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
