"""Keras 3: `model.fit` under a plan, and the callbacks that data-parallel training needs."""

from tf_libra.keras.callbacks import AverageMetrics, BroadcastVariables
from tf_libra.keras.fit import OptimizedFit, optimize

__all__ = ["AverageMetrics", "BroadcastVariables", "OptimizedFit", "optimize"]
