"""Training with sharded updates, against training in which every rank updates all."""

import atexit
import importlib
import os

import horovod.tensorflow as hvd
from sharded_cases.common import LEFT, cases

if __name__ == "__main__":
    atexit.register(LEFT.touch)  # when TF-Libra has left
    hvd.init()
    importlib.import_module("sharded_cases.steps")  # adds its cases, as do the next
    differences = importlib.import_module("sharded_cases.differences")
    gathers = importlib.import_module("sharded_cases.gathers")
    importlib.import_module("sharded_cases.reads")
    importlib.import_module("sharded_cases.failures")
    importlib.import_module("sharded_cases.scalars")
    # A first call that fails ends the engine; cases that tune come before.
    cases.add("other_sums", lambda: differences.of_rank("sums"))
    cases.run()
    if not os.environ.get("TF_LIBRA_JOB_CASES"):
        gathers.leave()
