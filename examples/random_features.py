"""Searches random features by which a linear model tells handwritten digits, try after try.

Background job of burst_digits.py, on each rank by itself: NumPy, one try per call.
"""

import os

import numpy as np
from sklearn.datasets import load_digits

_IMAGES, _LABELS = load_digits(return_X_y=True)
_TRAINED = len(_LABELS) * 4 // 5
_RANK = int(os.environ.get("TF_LIBRA_BACKGROUND_RANK", "0"))
_RANDOM = np.random.default_rng(_RANK)
_best = 0.0


def try_some() -> None:
    """One try; says so where it is the best so far."""
    global _best
    count, scale = int(_RANDOM.integers(50, 500)), float(_RANDOM.uniform(0.01, 0.2))
    weights = scale * _RANDOM.standard_normal((_IMAGES.shape[1], count))
    features = np.cos(_IMAGES @ weights + _RANDOM.uniform(0, 2 * np.pi, count))
    known, wanted = features[:_TRAINED], np.eye(10)[_LABELS[:_TRAINED]]
    found = np.linalg.solve(known.T @ known + np.eye(count), known.T @ wanted)
    correct = (features[_TRAINED:] @ found).argmax(axis=1) == _LABELS[_TRAINED:]
    if correct.mean() > _best:
        _best = float(correct.mean())
        print(f"next to rank {_RANK}: {_best:.2%} with {count} features", flush=True)
