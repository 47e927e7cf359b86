#!/usr/bin/env python3
"""Packs TensorFlow, TF-Libra and the benchmarks for a machine that has no network.

    python tools/pack_runtime.py build/runtime --python 3.12

It needs the environment of `make setup`, and strip(1). Wheels for the other machine's Python come
from the package index; TF-Libra's wheel serves any Python, because TensorFlow loads its library,
not Python. TensorFlow has exactly the version that TF-Libra was compiled for. Headers, symbol
tables, tests and what training does not import are left out. The result is a folder of compressed
pieces of at most `--piece_mib`, `manifest.json` with their digests, and `unpack.py`
(`tools/unpack_runtime.py`), which needs nothing but Python:

    python3 unpack.py /opt/runtime      # again after each piece, if pieces arrive one by one
    cd /opt/runtime && python3 -m benchmarks.many_cores
"""

import argparse
import email
import hashlib
import io
import itertools
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MIB = 1 << 20
# Compressed independently, so that all cores compress and decompress.
BLOCK_BYTES = 32 * MIB
# Folders from the root of the packages, and why training does not need them.
UNUSED = {
    "tensorflow/include": "headers",
    "clang": "a C++ parser for TensorFlow's own build",
    "bin": "console scripts, which name the interpreter of this machine",
}
# Not "test": a public module of TensorFlow.
TEST_FOLDER = "tests"
# pip wants each tag that the machine accepts by name.
PLATFORMS = (
    "linux_x86_64",
    *("manylinux1_x86_64", "manylinux2010_x86_64", "manylinux2014_x86_64"),
    *(f"manylinux_2_{minor}_x86_64" for minor in range(5, 29)),
)
BENCHMARKS = ("benchmarks/**/*.py", "benchmarks/**/*.json")


def tensorflow_requirement(wheel: Path) -> str:
    """Returns the TensorFlow that a wheel of TF-Libra was compiled for, as pip names it.

    Raises:
        ValueError: it was compiled for none.
    """
    with zipfile.ZipFile(wheel) as file:
        [metadata] = [name for name in file.namelist() if name.endswith(".dist-info/METADATA")]
        stated = email.message_from_bytes(file.read(metadata))
    version = re.fullmatch(r"[\d.]+\+tf([\d.]+)", str(stated["Version"]))
    package = re.search(r"^(tensorflow(?:[-_]cpu)?)==", _lines(stated), re.MULTILINE)
    if version is None or package is None:
        raise ValueError(
            f"wheel: {wheel.name} must be compiled for a TensorFlow, got {stated['Version']}"
        )
    return f"{package[1]}=={version[1]}"


def _lines(stated: Any) -> str:
    return "\n".join(stated.get_all("Requires-Dist", []))


def build_wheel(folder: Path) -> Path:
    """Builds TF-Libra's wheel against this environment's TensorFlow."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", str(folder), str(ROOT)], check=True)
    [wheel] = folder.glob("*.whl")
    return wheel


def install(wheel: Path, python: str, site: Path) -> None:
    """Lays a wheel and all it requires out in a folder, for another version of Python."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    target = ["--target", str(site), "--no-compile", "--only-binary=:all:"]
    machine = ["--python-version", python, "--implementation", "cp"]
    platforms = [f"--platform={name}" for name in PLATFORMS]
    packages = [str(wheel), tensorflow_requirement(wheel)]
    subprocess.run([*pip, *target, *machine, *platforms, *packages], check=True)


def prune(site: Path) -> None:
    """Deletes what training does not need, and the symbol tables of TensorFlow's libraries."""
    for name in UNUSED:
        shutil.rmtree(site / name, ignore_errors=True)
    for path in sorted(site.rglob("*"), reverse=True):
        if path.is_dir() and path.name == TEST_FOLDER:
            shutil.rmtree(path)
        elif path.suffix in (".a", ".h", ".pyi"):
            path.unlink()
    # Libraries of other wheels were edited after linking, and strip(1) may break those.
    libraries = [
        path
        for folder in ("tensorflow", "tf_libra")
        for path in (site / folder).rglob("*.so*")
        if path.is_file() and path.read_bytes()[:4] == b"\x7fELF"
    ]
    subprocess.run(["strip", "--strip-unneeded", *map(str, libraries)], check=True)


def copy_benchmarks(site: Path) -> None:
    """Copies the benchmarks next to the packages, so that one folder holds all."""
    for path in itertools.chain.from_iterable(ROOT.glob(pattern) for pattern in BENCHMARKS):
        target = site / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


def pack(site: Path, out: Path, piece_bytes: int, preset: int, about: dict[str, Any]) -> None:
    """Writes a folder as pieces, with their manifest and the script that unpacks them.

    Args:
        site: what is packed.
        out: folder of the result.
        piece_bytes: size of a piece at most.
        preset: of LZMA, from 0 (fast) to 9 (small).
        about: further entries of the manifest.

    Raises:
        ValueError: a block does not fit into a piece.
    """
    pieces: list[dict[str, Any]] = []
    blocks: list[bytes] = []

    def write_piece() -> None:
        name, data = f"runtime-{len(pieces) + 1:02}.xz", b"".join(blocks)
        (out / name).write_bytes(data)
        pieces.append(
            {
                "name": name,
                "sha256": hashlib.sha256(data).hexdigest(),
                "bytes": len(data),
                "block_bytes": [len(block) for block in blocks],
            }
        )
        blocks.clear()

    raw_bytes = 0
    block_bytes = min(BLOCK_BYTES, piece_bytes // 2)
    for compressed, length in _compressed(_archive(site), block_bytes, preset):
        if len(compressed) > piece_bytes:
            raise ValueError(f"piece_bytes must be at least {len(compressed)}, got {piece_bytes}")
        if sum(map(len, blocks)) + len(compressed) > piece_bytes:
            write_piece()
        blocks.append(compressed)
        raw_bytes += length
    write_piece()
    manifest = {**about, "raw_bytes": raw_bytes, "pieces": pieces}
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    shutil.copyfile(Path(__file__).with_name("unpack_runtime.py"), out / "unpack.py")


def _archive(site: Path) -> Iterator[bytes]:
    """Yields a tar archive in parts; the same folder gives the same bytes."""
    buffer = io.BytesIO()

    def taken() -> bytes:
        data = buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()
        return data

    with tarfile.open(fileobj=buffer, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(site.rglob("*")):
            if path.is_file():
                entry = archive.gettarinfo(path, str(path.relative_to(site)))
                entry.uid = entry.gid = entry.mtime = 0
                entry.uname = entry.gname = ""
                with path.open("rb") as file:
                    archive.addfile(entry, file)
                yield taken()
    yield taken()


def _compressed(
    parts: Iterator[bytes], block_bytes: int, preset: int
) -> Iterator[tuple[bytes, int]]:
    """Yields blocks, each a compressed stream of its own, and their length before."""
    # Most of it is machine code: with relative jumps made absolute it compresses better.
    filters = [{"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, "preset": preset}]
    workers = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(workers) as pool:
        blocks = _cut(parts, block_bytes)
        while batch := list(itertools.islice(blocks, workers)):
            streams = pool.map(lambda block: lzma.compress(block, filters=filters), batch)
            yield from zip(streams, map(len, batch), strict=True)


def _cut(parts: Iterator[bytes], block_bytes: int) -> Iterator[bytes]:
    rest = bytearray()
    for part in parts:
        rest += part
        while len(rest) >= block_bytes:
            yield bytes(rest[:block_bytes])
            del rest[:block_bytes]
    if rest:
        yield bytes(rest)


def main(arguments: Sequence[str]) -> int:
    """Packs as the arguments say; prints sizes and seconds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="Folder of the pieces; replaced.")
    parser.add_argument("--python", default="3.12", help="Version of the other machine's Python.")
    parser.add_argument("--wheel", type=Path, help="TF-Libra's wheel; default: it is built.")
    parser.add_argument("--piece_mib", type=int, default=60, help="Size of a piece at most.")
    parser.add_argument("--preset", type=int, default=6, choices=range(10), help="Of LZMA.")
    parsed = parser.parse_args(arguments)
    if not re.fullmatch(r"3\.\d+", parsed.python):
        parser.error(f"--python must be a version such as 3.12, got {parsed.python!r}")
    if parsed.piece_mib < 1:
        parser.error(f"--piece_mib must be at least 1, got {parsed.piece_mib}")
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="pack-runtime-") as temporary:
        site = Path(temporary) / "site"
        wheel = parsed.wheel or build_wheel(Path(temporary) / "wheel")
        install(wheel, parsed.python, site)
        prune(site)
        copy_benchmarks(site)
        shutil.rmtree(parsed.out, ignore_errors=True)
        parsed.out.mkdir(parents=True)
        about = {"python": parsed.python, "tensorflow": tensorflow_requirement(wheel)}
        pack(site, parsed.out, parsed.piece_mib * MIB, parsed.preset, about)
    manifest = json.loads((parsed.out / "manifest.json").read_text())
    for piece in manifest["pieces"]:
        print(f"{parsed.out / piece['name']}: {piece['bytes'] / MIB:.1f} MiB")
    total = sum(piece["bytes"] for piece in manifest["pieces"])
    print(
        f"{manifest['tensorflow']} for Python {manifest['python']}:"
        f" {manifest['raw_bytes'] / MIB:.0f} MiB in {total / MIB:.0f} MiB,"
        f" {time.perf_counter() - start:.0f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
