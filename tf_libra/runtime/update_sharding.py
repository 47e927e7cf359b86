"""Updates at the owner: the updates of a trace that can be sharded.

Each rank updates only the parts of weights and slots that it owns, and weights are gathered
(ZeRO-1, arXiv 2004.13336).
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tensorflow as tf

from tf_libra.capture.dataflow import traced_graph
from tf_libra.capture.elementwise_updates import WeightUpdate, find_weight_updates
from tf_libra.capture.gradient_registry import ReducedGradient
from tf_libra.internal import native
from tf_libra.variable_sync.bound_variables import BoundVariable

_DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64)


@dataclass(frozen=True)
class UpdateSharding:
    """The updates of one trace that each rank makes for the parts that it owns.

    Attributes:
        num_elements: number of elements of each gradient with a sharded update, by name.
        slots: inputs of the graph that hold the owned parts alone between steps, ascending.
        weights: inputs of the graph that are gathered, ascending.
        weight_of: input that holds the weight of each gradient with a sharded update.
        whole: reasons for the updates that every rank makes, by gradient.
        overlaps_calls: whether gathers go on after a call.
    """

    num_elements: Mapping[str, int]
    slots: tuple[int, ...]
    weights: tuple[int, ...]
    weight_of: Mapping[str, int]
    whole: dict[str, str]
    overlaps_calls: bool

    @cached_property
    def id(self) -> str:
        """Identity of the sharding, equal on ranks with equal traces."""
        text = json.dumps([sorted(self.num_elements.items()), self.slots, self.overlaps_calls])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def register(self) -> None:
        """Makes the sharding known to the graph pass."""
        names = sorted(self.num_elements)
        c = native.load().c
        code = c.TfLibraRegisterSharding(
            self.id.encode(),
            len(names),
            native.text_array(names),
            native.long_array([self.num_elements[name] for name in names]),
            len(self.slots),
            native.int_array(self.slots),
            int(self.overlaps_calls),
        )
        if code != 0:
            raise MemoryError(c.TfLibraLastPlanError().decode(errors="replace"))


def find_update_sharding(
    concrete: Any,
    gradients: Iterable[ReducedGradient],
    touched: Iterable[BoundVariable],
    overlaps_calls: bool,
) -> UpdateSharding:
    """Finds the updates of a trace that can be sharded.

    Args:
        concrete: the trace, as TensorFlow's concrete function.
        gradients: the gradients that it all-reduces.
        touched: variables of a call.
        overlaps_calls: whether gathers go on after a call.
    """
    variables = {bound.index: bound for bound in touched if bound.is_variable}
    sizes = {
        gradient.name: math.prod(size or 0 for size in gradient.shape)
        for gradient in gradients
        if gradient.is_planned and None not in gradient.shape
    }
    results = [(tensor.op.name, tensor.value_index) for tensor in concrete.graph.outputs]
    graph = traced_graph.read(concrete.graph, with_sizes=True)
    num_elements, weight_of, written, slots, whole = {}, {}, set(), set(), {}
    for update in find_weight_updates(graph, results, adds_sums=True):
        reason = _why_whole(update, variables)
        if reason or update.gradient not in sizes:
            whole[update.gradient] = reason or "its size is unknown"
            continue
        num_elements[update.gradient] = sizes[update.gradient]
        written |= set(update.variables)
        own = {
            index
            for index in update.variables
            if not variables[index].trainable and index not in update.variable_readers
        }
        slots |= own
        # Another variable that is read may be an average of the weight.
        read = sorted({*update.variables} - own, key=lambda i: (not variables[i].trainable, i))
        if read:
            weight_of[update.gradient] = read[0]
    weights = tuple(sorted(written - slots))
    slot_inputs = tuple(sorted(slots))
    return UpdateSharding(num_elements, slot_inputs, weights, weight_of, whole, overlaps_calls)


def _why_whole(update: WeightUpdate, variables: Mapping[int, BoundVariable]) -> str:
    if update.mixed_by is not None:
        return f"{update.mixed_by} combines different elements"
    if update.readers:
        return f"{update.readers[0]} reads the whole gradient"
    for index in update.variables:
        bound = variables.get(index)
        if bound is None or bound.dtype not in _DTYPES:
            return "it writes something other than a floating-point variable"
    return ""
