"""Cases of pipelines on several workers: results, variables, and rejected steps."""

import importlib

import horovod.tensorflow as hvd
from pipeline_cases.common import cases

# The cases of the last topic change the ranks from those of the harness.
TOPICS = ("steps", "variables", "next_jobs")

if __name__ == "__main__":
    hvd.init()
    for topic in TOPICS:  # each adds its cases
        importlib.import_module(f"pipeline_cases.{topic}")
    cases.run()
