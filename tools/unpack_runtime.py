#!/usr/bin/env python3
"""Unpacks what `tools/pack_runtime.py` has packed, with nothing but Python's standard library.

    python3 unpack.py FOLDER [PIECE ...]

`unpack.py` and `manifest.json` lie in one folder, and pieces next to them, or where arguments say.
A machine may receive its pieces one after the other: every call moves the pieces that it finds into
`FOLDER.pieces`, after a check of their digests. The call that finds the last one unpacks all into
FOLDER and deletes `FOLDER.pieces`. The exit status is 0 when FOLDER is complete, 3 while pieces are
missing, and 1 for pieces that are damaged or of another runtime.
"""

import argparse
import hashlib
import io
import json
import lzma
import os
import shutil
import sys
import tarfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

MISSING_STATUS = 3
_COMPLETE = "runtime.json"


class RuntimePiecesError(Exception):
    """Pieces that cannot be unpacked; one line for the user."""


def collect(manifest: dict[str, Any], found: list[Path], store: Path) -> list[str]:
    """Moves pieces into the store; returns the names of those that are still missing.

    Args:
        manifest: of the runtime.
        found: files that may be pieces; those of other names are left alone.
        store: keeps pieces between calls.

    Raises:
        RuntimePiecesError: a piece is not the one of the manifest.
    """
    store.mkdir(parents=True, exist_ok=True)
    pieces = {piece["name"]: piece for piece in manifest["pieces"]}
    for path in found:
        piece = pieces.get(path.name)
        if piece is None or not path.is_file():
            continue
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != piece["sha256"]:
            raise RuntimePiecesError(
                f"{path}: SHA-256 must be {piece['sha256']}, got {digest}; copy the piece again"
            )
        shutil.copyfile(path, store / f"{path.name}.new")
        os.replace(store / f"{path.name}.new", store / path.name)
    return [name for name in pieces if not (store / name).is_file()]


class _Blocks(io.RawIOBase):
    """The archive as a file: its blocks, which threads decompress ahead."""

    def __init__(self, manifest: dict[str, Any], store: Path) -> None:
        super().__init__()
        self._pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)))
        self._blocks = self._decompressed(manifest, store)
        self._rest = memoryview(b"")

    def _decompressed(self, manifest: dict[str, Any], store: Path) -> Iterator[bytes]:
        for piece in manifest["pieces"]:
            data, blocks, start = memoryview((store / piece["name"]).read_bytes()), [], 0
            for length in piece["block_bytes"]:
                blocks.append(data[start : start + length])
                start += length
            yield from self._pool.map(lzma.decompress, blocks)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._rest = memoryview(block)
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def close(self) -> None:
        self._pool.shutdown()
        super().close()


def unpack(manifest: dict[str, Any], store: Path, folder: Path) -> None:
    """Unpacks all pieces of the store into a folder that does not exist yet."""
    fresh = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    with (
        _Blocks(manifest, store) as blocks,
        tarfile.open(fileobj=io.BufferedReader(blocks, 1 << 20), mode="r|") as archive,
    ):
        # Python has it from 3.11.4 on; before, digests of the manifest have to do.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(fresh)
    (fresh / _COMPLETE).write_text(json.dumps(manifest, indent=1) + "\n")
    os.replace(fresh, folder)
    shutil.rmtree(store)


def main(arguments: list[str]) -> int:
    """Collects pieces, and unpacks them when all are there; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="What is unpacked becomes this folder.")
    parser.add_argument("pieces", nargs="*", type=Path, help="Default: those next to this script.")
    parsed = parser.parse_args(arguments)
    own_folder = Path(__file__).resolve().parent
    manifest = json.loads((own_folder / "manifest.json").read_text())
    folder: Path = parsed.folder.absolute()
    store = folder.with_name(f"{folder.name}.pieces")
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    try:
        if here != manifest["python"]:
            raise RuntimePiecesError(
                f"the runtime is for Python {manifest['python']}, and this is Python {here}"
            )
        if folder.exists():
            if json.loads((folder / _COMPLETE).read_text()) == manifest:
                print(f"{folder} is complete")
                return 0
            raise RuntimePiecesError(f"{folder} holds another runtime: delete it first")
        missing = collect(manifest, parsed.pieces or sorted(own_folder.iterdir()), store)
        if missing:
            print(f"{folder}: still missing {', '.join(missing)}")
            return MISSING_STATUS
        start = time.perf_counter()
        unpack(manifest, store, folder)
    except (OSError, RuntimePiecesError, lzma.LZMAError, tarfile.TarError) as error:
        print(f"unpack: {error}", file=sys.stderr)
        return 1
    print(f"{folder}: unpacked in {time.perf_counter() - start:.1f} s")
    print(f"cd {folder} && python3 -m benchmarks.many_cores")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
