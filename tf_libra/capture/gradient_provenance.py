"""The gradients that a tensor of a traced step was made of."""

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_libra.capture.dataflow.ancestors import ancestors, direct_sources
from tf_libra.capture.gradient_registry import GradientCall, GradientRegistry
from tf_libra.capture.variables import plain

# Cast is what compression to fp16 writes; captures of branches are placeholders.
_KEEP_VALUE = ("Identity", "Cast", "Placeholder")


@dataclass(frozen=True)
class GradientOrigin:
    """A gradient that a tensor is, or was made of.

    Attributes:
        call: of `gradient`, which has computed it.
        index: which of that call's it is.
        is_itself: whether the tensor is that gradient, in perhaps another dtype.
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
        """Shape of what may be made of it to train with."""
        if self.call.is_jacobian:
            return plain(self.call.variables[self.index]).shape
        return self.call.raw[self.index].shape


def origins(marks: GradientRegistry, tensor: Any) -> list[GradientOrigin]:
    """The gradients that a tensor was made of, nearest first.

    Args:
        marks: knows gradients.
        tensor: of the graph that is being traced, or of one in it.
    """
    found: list[GradientOrigin] = []
    itself = {id(tensor)}
    for current in ancestors(tensor, lambda one: marks.find(one) is not None):
        known = marks.find(current)
        if known is not None:
            found.append(GradientOrigin(*known, is_itself=id(current) in itself))
        elif id(current) in itself and current.op.type in _KEEP_VALUE:
            itself.update(map(id, direct_sources(current)))
    return found
