"""Keras 3 support: `model.fit` under a plan, and callbacks for data-parallel training."""

from tf_libra.keras.callbacks import AverageMetrics, BroadcastVariables
from tf_libra.keras.fit import OptimizedFit, optimize

__all__ = ["AverageMetrics", "BroadcastVariables", "OptimizedFit", "optimize"]
