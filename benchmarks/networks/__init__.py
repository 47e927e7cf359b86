"""Networks that the papers train: their gradient tensors, as data. Loading needs no TensorFlow."""

from benchmarks.networks.network import NAMES, Network, Tensor, load

__all__ = ["NAMES", "Network", "Tensor", "load"]
