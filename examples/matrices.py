"""Something to do beside training: a step multiplies two matrices.

    tf-libra run --background "python -m tf_libra.multiplexing.repeat matrices:multiply" \\
      -np 2 python examples/pipeline_digits.py --amplification 1.5
"""

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np

MATRIX = np.random.default_rng(0).normal(size=(200, 200))


def multiply() -> None:
    """One step, which `repeat` counts."""
    MATRIX @ MATRIX
