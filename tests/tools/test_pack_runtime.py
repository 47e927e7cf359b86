"""Pieces of a runtime, and the script that unpacks them, which sees nothing of this repository."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tf_libra.internal import native
from tools import pack_runtime, unpack_runtime

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"
PIECE_BYTES = 100_000


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of random bytes, of which the large one does not fit into a piece."""
    folder = tmp_path_factory.mktemp("site")
    random = np.random.default_rng(0)
    for name, size in (("a/large.so", 250_000), ("a/small.py", 10), ("b/empty.py", 0)):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(random.bytes(size))
    return folder


def packed(site: Path, out: Path, python: str = HERE) -> Path:
    out.mkdir()
    pack_runtime.pack(site, out, PIECE_BYTES, preset=0, about={"python": python})
    return out


def unpack(out: Path, folder: Path, *pieces: Path) -> int:
    command = [sys.executable, "-I", out / "unpack.py", folder, *pieces]
    return subprocess.run(command, capture_output=True).returncode


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "runtime.json")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_pieces_are_at_most_as_large_as_requested_and_unpack_to_the_same_files(
    site: Path, tmp_path: Path
) -> None:
    out = packed(site, tmp_path / "out")
    pieces = sorted(out.glob("*.xz"))
    assert len(pieces) >= 3
    assert max(path.stat().st_size for path in pieces) <= PIECE_BYTES
    assert unpack(out, tmp_path / "runtime") == 0
    assert contents(tmp_path / "runtime") == contents(site)
    assert unpack(out, tmp_path / "runtime") == 0  # complete


def test_pieces_that_arrive_separately_are_stored_until_the_last(
    site: Path, tmp_path: Path
) -> None:
    out, folder = packed(site, tmp_path / "out"), tmp_path / "runtime"
    *pieces, last = sorted(out.glob("*.xz"))
    for piece in pieces:
        assert unpack(out, folder, piece) == unpack_runtime.MISSING_STATUS
        piece.unlink()
        assert not folder.exists()
    assert unpack(out, folder, last) == 0
    assert contents(folder) == contents(site)
    assert not folder.with_name("runtime.pieces").exists()


def test_a_damaged_piece_is_rejected_and_a_good_copy_accepted(site: Path, tmp_path: Path) -> None:
    out, folder = packed(site, tmp_path / "out"), tmp_path / "runtime"
    piece = min(out.glob("*.xz"))
    good = piece.read_bytes()
    piece.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    manifest = json.loads((out / "manifest.json").read_text())
    with pytest.raises(unpack_runtime.RuntimePiecesError, match=piece.name):
        unpack_runtime.collect(manifest, [piece], tmp_path / "store")
    assert unpack(out, folder) == 1
    piece.write_bytes(good)
    assert unpack(out, folder) == 0


def test_a_runtime_for_another_python_or_over_another_runtime_is_rejected(
    site: Path, tmp_path: Path
) -> None:
    assert unpack(packed(site, tmp_path / "old", python="3.7"), tmp_path / "runtime") == 1
    assert unpack(packed(site, tmp_path / "first"), tmp_path / "runtime") == 0
    (site / "c.py").write_text("new")
    assert unpack(packed(site, tmp_path / "second"), tmp_path / "runtime") == 1


def test_the_same_folder_gives_the_same_pieces(site: Path, tmp_path: Path) -> None:
    first, second = packed(site, tmp_path / "first"), packed(site, tmp_path / "second")
    assert contents(first) == contents(second)


def test_a_wheel_names_the_exact_tensorflow_it_was_compiled_for(tmp_path: Path) -> None:
    def wheel(version: str, *required: str) -> Path:
        path = tmp_path / f"tf_libra-{version}-py3-none-linux_x86_64.whl"
        lines = [
            f"Version: {version}",
            *(f"Requires-Dist: {requirement}" for requirement in required),
        ]
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("tf_libra.dist-info/METADATA", "\n".join(lines) + "\n\n")
        return path

    compiled = wheel("0.1.0+tf2.21.0", "numpy>=1.26", "tensorflow-cpu==2.21.*")
    assert pack_runtime.tensorflow_requirement(compiled) == "tensorflow-cpu==2.21.0"
    with pytest.raises(ValueError, match="wheel"):
        pack_runtime.tensorflow_requirement(wheel("0.1.0+planning.only", "numpy>=1.26"))


def test_prune_deletes_headers_and_tests_but_no_modules_named_test(tmp_path: Path) -> None:
    removed = ("tensorflow/include/a.h", "numpy/tests/x.py", "clang/c.so", "bin/tool", "a/b.pyi")
    included = ("tensorflow/_api/v2/test/__init__.py", "numpy/testing/y.py", "tf_libra/__init__.py")
    for name in (*removed, *included):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    library = tmp_path / "tf_libra" / "_tf_libra.so"
    library.write_bytes(native.PATH.read_bytes())
    pack_runtime.prune(tmp_path)
    assert {name for name in (*removed, *included) if (tmp_path / name).exists()} == set(included)
    assert library.stat().st_size < native.PATH.stat().st_size
