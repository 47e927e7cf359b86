"""The one shared library, as Python sees it."""

import ctypes
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.backends.alone import alone
from tf_libra.internal import native

ROOT = Path(__file__).resolve().parents[2]
# A function's declaration: its name, and its arguments up to the closing parenthesis.
DECLARATION = re.compile(r"\b(TfLibra\w+)\(([^)]*)\)\s*;")


def declared() -> dict[str, int]:
    """Number of arguments of every C function that the headers offer."""
    found = {}
    for header in ("ops/c_api.h", "passes/c_api.h"):
        text = re.sub(r"//.*", "", (ROOT / header).read_text())
        for name, arguments in DECLARATION.findall(text):
            argument = arguments.strip()
            found[name] = 0 if argument in ("", "void") else argument.count(",") + 1
    return found


def test_every_c_function_is_called_with_as_many_arguments_as_it_has() -> None:
    c = native.load().c
    found = declared()
    assert found
    for name, number in found.items():
        assert len(getattr(c, name).argtypes or ()) == number, name


def test_messages_are_utf8_whatever_they_are_made_of() -> None:
    assert native.message("m\N{LATIN SMALL LETTER A WITH DIAERESIS}") == b"m\xc3\xa4"
    assert native.message("m\udce4\0") == rb"m\udce4\0"


def test_to_ask_whether_an_engine_runs_loads_nothing() -> None:
    """A lone process trains where the library cannot be loaded, too."""
    script = (
        "from tf_libra.internal import native; from tf_libra.backends import engine;"
        " assert engine.running() is None and not native.is_loaded()"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)


def test_it_is_loaded_once() -> None:
    assert native.load() is native.load()
    assert native.load().path == native.PATH
    assert callable(native.load().ops.libra_all_reduce)


def test_missing_library_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(native, "PATH", tmp_path / "_tf_libra.so")
    with pytest.raises(ImportError, match=r"installed.*\(_tf_libra\.so\)"):
        native.load.__wrapped__()


def test_library_of_another_tensorflow_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "_tf_libra.so"
    path.write_bytes(b"no library")
    monkeypatch.setattr(native, "PATH", path)
    with pytest.raises(ImportError, match=f"TensorFlow {tf.__version__}"):
        native.load.__wrapped__()


def test_arrays_hold_their_input() -> None:
    assert list(native.int_array((3, -1, 2**31 - 1))) == [3, -1, 2**31 - 1]
    texts = native.text_array(["a", "\u00fc/kernel"])
    assert [text.decode() for text in texts] == ["a", "\u00fc/kernel"]
    assert ctypes.sizeof(native.int_array(())) == 0


def test_gradient_of_an_all_reduce_has_the_same_reduction() -> None:
    engine = alone()
    try:
        argument = tf.constant([1.0, -2.0, 4.0])
        with tf.GradientTape() as tape:
            tape.watch(argument)
            (reduced,) = native.load().ops.libra_all_reduce(
                tensors=[argument],
                ends=[],
                tensor_names=["w"],
                function="step",
                reduction="average",
            )
            loss = tf.reduce_sum(reduced**2)
        np.testing.assert_array_equal(tape.gradient(loss, argument), 2 * argument)
        assert [r.tensor_names for r in engine.drain_telemetry()] == [("w",), ("w/grad",)]
    finally:
        engine.close()
