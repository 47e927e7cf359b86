"""Steps of a MultiWorkerMirroredStrategy under plans, against the strategy alone.

No module imports Horovod.
"""

import importlib

from multi_worker_cases.common import cases

if __name__ == "__main__":
    for topic in ("steps", "fit", "limits"):  # each adds its cases
        importlib.import_module(f"multi_worker_cases.{topic}")
    cases.run()
