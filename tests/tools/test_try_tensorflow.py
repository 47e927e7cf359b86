"""Parts of the trial of another TensorFlow; `make nightly` runs all of it."""

import subprocess
from pathlib import Path

from tools.try_tensorflow import PRIVATE_NAMES, ROOT, copy_tree, private_names


def test_private_names_are_what_is_imported_from_inside_tensorflow() -> None:
    source = (
        "import tensorflow as tf\n"
        "from tensorflow.python.eager.context import context as eager, async_wait\n"
        "from os import path\n"
        "def later():\n"
        "    from tensorflow.tsl.profiler.protobuf import trace_events_pb2\n"
    )
    assert private_names(source) == [
        ("tensorflow.python.eager.context", "context"),
        ("tensorflow.python.eager.context", "async_wait"),
        ("tensorflow.tsl.profiler.protobuf", "trace_events_pb2"),
    ]
    assert private_names((ROOT / PRIVATE_NAMES).read_text())


def test_the_copy_has_the_files_of_the_tree_and_what_was_built_from_it(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "pkg").mkdir(parents=True)
    subprocess.run(["git", "init", "--quiet", source], check=True)
    (source / ".gitignore").write_text("*.so\n")
    (source / "pkg" / "old.py").write_text("1")
    (source / "pkg" / "library.so").write_text("of another TensorFlow")
    copy_tree(source, target)
    (target / "build").mkdir()
    (target / "build" / "object.o").write_text("2")
    (source / "pkg" / "old.py").rename(source / "pkg" / "new.py")
    copy_tree(source, target)
    found = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}
    assert found == {".gitignore", "pkg/new.py", "build/object.o"}
