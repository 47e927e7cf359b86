"""Patterns of training scripts, on two workers, and alone on the joint batch: `scripts.py PLAN`."""

import importlib

import horovod.tensorflow as hvd
from script_cases.common import cases

TOPICS = (
    "traces",
    "updates",
    "functions",
    "gradient_kinds",
    "numerics",
    "calls",
    "second_derivatives",
    "data",  # last: its last cases begin another job of the same ranks
)

if __name__ == "__main__":
    hvd.init()
    for topic in TOPICS:  # each adds its cases
        importlib.import_module(f"script_cases.{topic}")
    cases.run()
