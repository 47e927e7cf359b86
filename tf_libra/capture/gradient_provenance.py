"""The gradients that a tensor of a traced step was made of."""

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_libra.capture.dataflow.ancestors import ancestors, direct_sources
from tf_libra.capture.gradient_registry import GradientCall, GradientRegistry
from tf_libra.capture.variables import plain

# Compression to fp16 writes Cast; captures of branches are placeholders.
_KEEP_VALUE = ("Identity", "Cast", "Placeholder")


@dataclass(frozen=True)
class GradientOrigin:
    """A gradient that a tensor is, or was made of.

    Attributes:
        call: the call of `gradient` that computed it.
        index: of the gradient in that call.
        is_itself: whether the tensor is that gradient, possibly in another dtype.
    """

    call: GradientCall
    index: int
    is_itself: bool

    @property
    def name(self) -> str:
        """Name of the variable."""
        return self.call.names[self.index]

    @property
    def shape(self) -> tf.TensorShape:
        """Shape of a gradient made of it to train with."""
        if self.call.is_jacobian:
            return plain(self.call.variables[self.index]).shape
        return self.call.raw[self.index].shape


def origins(registry: GradientRegistry, tensor: Any) -> list[GradientOrigin]:
    """Returns the gradients that a tensor was made of, nearest first.

    Args:
        registry: knows gradients.
        tensor: of the graph that is being traced, or of a nested one.
    """
    found: list[GradientOrigin] = []
    itself = {id(tensor)}
    for current in ancestors(tensor, lambda ancestor: registry.find(ancestor) is not None):
        known = registry.find(current)
        if known is not None:
            found.append(GradientOrigin(*known, is_itself=id(current) in itself))
        elif id(current) in itself and current.op.type in _KEEP_VALUE:
            itself.update(map(id, direct_sources(current)))
    return found
