"""Failures on two workers that must be reported: `failure_cases.py PLAN.json`."""

import importlib
import logging

from failures.common import cases

# The first case of the first topic initializes Horovod.
TOPICS = ("invalid_steps", "disagreement", "rewriting", "surroundings", "unfit_plans")

if __name__ == "__main__":
    logging.getLogger("tf_libra").setLevel(logging.INFO)
    for topic in TOPICS:  # each adds its cases
        importlib.import_module(f"failures.{topic}")
    cases.run()
