#!/usr/bin/env python3
"""Tries a wheel of TF-Libra where there is nothing else: no sources, no compiler, no Horovod.

    python tools/try_wheel.py dist/tensorflow-2.21/*.whl

Looks at what is in it and what it requires, installs it with that into an environment of its own,
and lets it plan, load its ops and train two ranks under a plan (`tools/train_two_ranks.py`).
"""

import argparse
import email
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

NEEDED = (
    "tf_libra/_tf_libra.so",
    "tf_libra/libnccl-tuner-libra.so",
    "tf_libra/py.typed",
    "tf_libra/reporting/report/static/api.js",
    "tf_libra/reporting/tensorboard/static/index.js",
    "tf_libra/reporting/tensorboard/static/style.css",
)
COMPILERS = ("c++", "cc", "clang", "clang++", "cmake", "g++", "gcc", "make", "ninja", "nvcc")
TRAINING = Path(__file__).with_name("train_two_ranks.py")


def problems(wheel: Path) -> list[str]:
    """Returns the problems of a wheel's contents and metadata, in words."""
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
        [metadata] = [name for name in names if name.endswith(".dist-info/METADATA")]
        stated = email.message_from_bytes(file.read(metadata))
    found = [f"{name} is missing" for name in NEEDED if name not in names]
    allowed = ("tf_libra/", metadata.partition("/")[0] + "/")
    found += [f"{name} does not belong in it" for name in names if not name.startswith(allowed)]
    sources = (".cc", ".h", ".o", ".pyc")
    found += [f"{name} does not belong in it" for name in names if name.endswith(sources)]
    version = str(stated["Version"])
    built_for = re.fullmatch(r"[\d.]+\+tf(\d+\.\d+)\.\d+", version)
    if built_for is None:
        return [*found, f"its version {version} names no TensorFlow"]
    pin = rf"tensorflow(?:[_-]cpu)?=={re.escape(built_for[1])}\.\*"
    required = [
        requirement
        for requirement in stated.get_all("Requires-Dist", [])
        if "extra ==" not in requirement
    ]
    if not any(re.fullmatch(pin, pinned) for pinned in required):
        found.append(f"it does not require the TensorFlow {built_for[1]} that it was built for")
    if wheel.stem.split("-")[-3:-1] != ["py3", "none"]:
        found.append(f"{wheel.name} is for one version of Python alone")
    return found


def bare(folder: Path) -> dict[str, str]:
    """The environment variables of a machine on which nothing but `folder`'s Python is found."""
    ours = ("PATH", "CC", "CXX", "VIRTUAL_ENV", "LD_LIBRARY_PATH")
    filtered = {
        name: value
        for name, value in os.environ.items()
        if name not in ours and not name.startswith("PYTHON")
    }
    return filtered | {"PATH": str(folder / "bin"), "TF_CPP_MIN_LOG_LEVEL": "1"}


def main() -> int:
    """Tries each wheel; 1 where one does not do."""
    parser = argparse.ArgumentParser(description=__doc__, add_help=True)
    parser.add_argument("wheels", nargs="+", type=Path, metavar="WHEEL")
    for wheel in parser.parse_args().wheels:
        wrong = problems(wheel)
        if wrong:
            print(*(f"{wheel}: {message}" for message in wrong), sep="\n", file=sys.stderr)
            return 1
        with tempfile.TemporaryDirectory(prefix="try-wheel-") as temporary:
            folder = Path(temporary) / "venv"
            venv.create(folder, with_pip=True)
            python, variables = folder / "bin" / "python", bare(folder)
            there = [
                compiler for compiler in COMPILERS if shutil.which(compiler, path=variables["PATH"])
            ]
            assert not there, there
            commands: list[list[str | Path]] = [
                [python, "-m", "pip", "install", "--quiet", wheel.resolve()],
                [python, "-m", "pip", "check"],
                [folder / "bin" / "tf-libra", "--version"],
                [folder / "bin" / "tf-libra", "run", "-np", "2", "python", TRAINING],
            ]
            for command in commands:
                done = subprocess.run(command, env=variables, cwd=temporary, timeout=1800)
                if done.returncode:
                    print(f"{wheel}: {' '.join(map(str, command))} failed", file=sys.stderr)
                    return 1
        print(f"{wheel}: installs without a compiler, plans and trains")
    return 0


if __name__ == "__main__":
    sys.exit(main())
