"""Scripts of `tests/real`, one after the other: `real.py MODULE...`.

What one process trains alone needs no other: each rank runs every other of those first.
"""

import importlib
import os
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import horovod.tensorflow as hvd
import numpy as np
from harness import FOLDER, RANK, SIZE, Cases

from tests.real import running

cases = Cases()


def train_alone(name: str, script: running.Script, reference: str) -> None:
    try:
        np.savez(FOLDER / f"{name}.alone.npz", **running.run_alone(name, script, SIZE, reference))
    except Exception:
        (FOLDER / f"{name}.alone.txt").write_text(traceback.format_exc())


def add(name: str, script: running.Script, reference: str) -> None:
    if reference:
        cases.add(name, lambda: running.run(name, script, RANK, SIZE, reference, cases.save))
    else:
        cases.add(name, lambda: running.run_ours(name, script, RANK, SIZE))


if __name__ == "__main__":
    hvd.init()
    modules = [importlib.import_module(f"tests.real.{module}") for module in sys.argv[1:]]
    found = {name: entry for module in modules for name, entry in module.SCRIPTS.found.items()}
    chosen = os.environ.get("TF_LIBRA_JOB_CASES", "").split() or list(found)
    alone = [name for name in chosen if found[name][1] in ("alone", "traced")]
    for name in alone[RANK::SIZE]:
        train_alone(name, *found[name])
    for name, (script, reference) in found.items():
        add(name, script, reference)
    cases.run()
