"""Imports of Horovod that a script has, found without executing it."""

from pathlib import Path

import pytest

from tf_libra.launcher.script_imports import find_horovod_import


def found_in(folder: Path, *command: str, **files: str) -> tuple[str, int, bool] | None:
    """Returns file, line and whether the import is optional, after files were written."""
    for name, text in files.items():
        path = (folder / name).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = find_horovod_import(command or ("python", str(folder / "train.py"), "--flag", "x.py"))
    return None if found is None else (found.file.name, found.line, found.is_optional)


@pytest.mark.parametrize(
    "text",
    [
        "import horovod",
        "import os, horovod.tensorflow as hvd",
        "from horovod import tensorflow",
        "from horovod.tensorflow import init",
        "def f():\n    import horovod",
        "if True:\n    pass\nelse:\n    import horovod",
        "try:\n    pass\nexcept KeyError:\n    import horovod",
        "try:\n    import horovod\nfinally:\n    pass",
    ],
)
def test_every_form_is_found(text: str, tmp_path: Path) -> None:
    line = next(
        number for number, text_line in enumerate(text.splitlines(), 1) if "horovod" in text_line
    )
    assert found_in(tmp_path, train=text) == ("train.py", line, False)


@pytest.mark.parametrize(
    "text",
    [
        "import horovodlike",
        "from .horovod import x",
        "name = 'import horovod'",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import horovod",
        "raise RuntimeError('executed')",
        "this is no Python",
    ],
)
def test_other_scripts_have_none(text: str, tmp_path: Path) -> None:
    assert found_in(tmp_path, train=text) is None


@pytest.mark.parametrize("handler", ["", "ImportError", "(KeyError, ModuleNotFoundError)"])
def test_handled_import_is_optional(handler: str, tmp_path: Path) -> None:
    text = f"try:\n    import horovod\nexcept {handler}:\n    pass\n".replace("except :", "except:")
    assert found_in(tmp_path, train=text) == ("train.py", 2, True)
    assert found_in(tmp_path, train=text + "import horovod\n") == ("train.py", 5, False)


@pytest.mark.parametrize(
    ("train", "module"),
    [
        ("import lib", "lib"),
        ("from lib import x", "lib"),
        ("import package.lib", "package/lib"),
        ("from package import lib", "package/lib"),
        ("import package", "package/__init__"),
    ],
)
def test_modules_of_the_folder_are_searched(train: str, module: str, tmp_path: Path) -> None:
    files = {"train": train, module: "import horovod"}
    assert found_in(tmp_path, **files) == (f"{Path(module).name}.py", 1, False)


def test_relative_imports_and_cycles_are_followed(tmp_path: Path) -> None:
    files = {
        "train": "import package.first",
        "package/__init__": "",
        "package/first": "from . import second\nimport package.first",
        "package/second": "from .first import x\nfrom .inner.third import y",
        "package/inner/third": "from ..last import z",
        "package/last": "\nimport horovod",
    }
    assert found_in(tmp_path, **files) == ("last.py", 2, False)


def test_module_is_found_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ("python", "-m", "package.train")
    assert found_in(tmp_path, *command, **{"package/train": "import horovod"}) == (
        "train.py",
        1,
        False,
    )
    assert found_in(tmp_path, "python", "-m", "absent") is None


def test_program_that_is_no_script_has_none(tmp_path: Path) -> None:
    assert found_in(tmp_path, "true") is None
    assert found_in(tmp_path, "python", str(tmp_path / "absent.py")) is None
