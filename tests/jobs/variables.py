"""The variables that two workers compare and copy, and the ops that a step must have executed."""

import importlib
import logging

import horovod.tensorflow as hvd
from variable_cases.common import cases

TOPICS = ("unequal_starts", "arguments", "allowed_differences", "executed_ops")

if __name__ == "__main__":
    logging.getLogger("tf_libra").setLevel(logging.INFO)
    hvd.init()
    for topic in TOPICS:  # each adds its cases
        importlib.import_module(f"variable_cases.{topic}")
    cases.run()
