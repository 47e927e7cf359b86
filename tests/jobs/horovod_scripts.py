"""Scripts written for Horovod, decorated and not, and one process alone on the joint batch."""

import importlib
import os

import horovod.tensorflow as hvd
from horovod_cases.comparisons import add_all
from horovod_cases.steps import OWN_SETS, cases

if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    hvd.init(process_sets=OWN_SETS)
    importlib.import_module("horovod_cases.patterns")  # adds its cases
    add_all()
    cases.run()
