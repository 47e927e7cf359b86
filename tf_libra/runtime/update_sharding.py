"""Updates at the owner: the updates of a trace that can be sharded.

Each rank updates only the parts of weights and slots that it owns, and weights are gathered
(ZeRO-1, arXiv 2004.13336).
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import tensorflow as tf

from tf_libra.capture.dataflow import traced_graph
from tf_libra.capture.early_writes import find_early_writes
from tf_libra.capture.elementwise_updates import (
    EXACT_SUMS,
    SUMS,
    WeightUpdate,
    find_weight_updates,
)
from tf_libra.capture.gradient_registry import ReducedGradient
from tf_libra.coordination.control_plane import Control
from tf_libra.internal import native
from tf_libra.variable_sync.bound_variables import BoundVariable

_DTYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
_PYTHON_CALLS = frozenset({"EagerPyFunc", "PyFunc", "PyFuncStateless"})


@dataclass(frozen=True)
class ShardedUpdate:
    """The update by one gradient that each rank makes for the part that it owns.

    Attributes:
        num_elements: number of elements of the gradient.
        slots: inputs of the graph that hold the owned parts alone between steps.
        weights: inputs of the graph that are gathered, trainable variables first.
        sums: sums of all elements of the gradient or a slot, which ranks add.
    """

    num_elements: int
    slots: tuple[int, ...]
    weights: tuple[int, ...]
    sums: tuple[str, ...]


@dataclass(frozen=True)
class UpdateSharding:
    """The updates of one trace that each rank makes for the parts that it owns.

    Attributes:
        updates: the sharded updates, by the gradient's name, in the order of names.
        whole: reasons for the updates that every rank makes, by gradient.
        overlaps_calls: whether gathers go on after a call.
        written_early: inputs of the graph that hold variables which it may change before gradients
            have arrived.
    """

    updates: Mapping[str, ShardedUpdate]
    whole: Mapping[str, str]
    overlaps_calls: bool
    written_early: frozenset[int] = frozenset()

    @property
    def num_elements(self) -> dict[str, int]:
        """Number of elements of each gradient with a sharded update, by name."""
        return {name: update.num_elements for name, update in self.updates.items()}

    @cached_property
    def slots(self) -> tuple[int, ...]:
        """Inputs of the graph that hold the owned parts alone, in an order of gradients."""
        found = (slot for update in self.updates.values() for slot in update.slots)
        return tuple(dict.fromkeys(found))

    @property
    def early(self) -> frozenset[int]:
        """Slots, as inputs of the graph, that it may change before gradients have arrived."""
        return self.written_early & {*self.slots}

    @cached_property
    def weights(self) -> tuple[int, ...]:
        """Inputs of the graph that are gathered, in an order of gradients."""
        found = (weight for update in self.updates.values() for weight in update.weights)
        return tuple(dict.fromkeys(found))

    @property
    def weight_of(self) -> dict[str, int]:
        """Input that holds the weight of each gradient with a sharded update."""
        found = self.updates.items()
        return {name: update.weights[0] for name, update in found if update.weights}

    @cached_property
    def id(self) -> str:
        """Identity of the sharding, equal on ranks with equal traces."""
        numbers = sorted(self.num_elements.items()), sorted(self.slots)
        text = json.dumps([*numbers, self.overlaps_calls])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def without(self, whole: Mapping[str, str]) -> "UpdateSharding":
        """Returns the sharding with more updates that every rank makes, by gradient, with reasons.

        Gradients without a sharded update keep their reasons.
        """
        more = {name: reason for name, reason in whole.items() if name in self.updates}
        rest = {name: update for name, update in self.updates.items() if name not in more}
        return replace(self, updates=rest, whole={**self.whole, **more})

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
            native.int_array(sorted(self.slots)),
            int(self.overlaps_calls),
        )
        if code != 0:
            raise MemoryError(c.TfLibraLastPlanError().decode(errors="replace"))


def find_update_sharding(
    concrete: Any,
    gradients: Iterable[ReducedGradient],
    touched: Iterable[BoundVariable],
    overlaps_calls: bool,
    is_exact: bool,
) -> UpdateSharding:
    """Finds the updates of a trace that can be sharded.

    Args:
        concrete: the trace, as TensorFlow's concrete function.
        gradients: the gradients that it all-reduces.
        touched: variables of a call.
        overlaps_calls: whether gathers go on after a call.
        is_exact: whether the step has to behave in all respects as without sharded updates.
    """
    variables = {bound.index: bound for bound in touched if bound.is_variable}
    sizes = {
        gradient.name: math.prod(size or 0 for size in gradient.shape)
        for gradient in gradients
        if gradient.is_planned and None not in gradient.shape
    }
    results = [(tensor.op.name, tensor.value_index) for tensor in concrete.graph.outputs]
    graph = traced_graph.read(concrete.graph, with_sizes=True)
    updates, whole = {}, {}
    may_differ = _why_may_differ(concrete, graph) if is_exact else ""
    for update in find_weight_updates(graph, results, EXACT_SUMS if is_exact else SUMS):
        reason = may_differ or _why_whole(update, variables)
        if reason or update.gradient not in sizes:
            whole[update.gradient] = reason or "its size is unknown"
        else:
            updates[update.gradient] = _shard(update, sizes[update.gradient], variables)
    early = find_early_writes(graph) if updates else frozenset()
    return UpdateSharding(updates, whole, overlaps_calls, early)


def _shard(
    update: WeightUpdate, num_elements: int, variables: Mapping[int, BoundVariable]
) -> ShardedUpdate:
    slots = tuple(
        index
        for index in update.variables
        if not variables[index].trainable and index not in update.variable_readers
    )
    # Another variable that is read may be an average of the weight.
    weights = sorted({*update.variables} - {*slots}, key=lambda i: (not variables[i].trainable, i))
    of_slots = (name for index in slots for name in update.variable_sums.get(index, ()))
    sums = tuple(sorted((*update.sums, *of_slots)))
    return ShardedUpdate(num_elements, slots, tuple(weights), sums)


def _why_whole(update: WeightUpdate, variables: Mapping[int, BoundVariable]) -> str:
    if update.mixed_by is not None:
        return f"{update.mixed_by} combines different elements"
    if update.readers:
        return f"{update.readers[0]} reads the whole gradient"
    for index in update.variables:
        bound = variables.get(index)
        if bound is None or bound.dtype not in _DTYPES:
            return "it writes something other than a floating-point variable"
        if not bound.shape.is_fully_defined():
            return f"the shape of {bound.name!r} may change"
    return ""


def _why_may_differ(concrete: Any, graph: traced_graph.TracedGraph) -> str:
    """Returns why a step may show that its updates are sharded; empty if it cannot.

    Python that the step calls may read slots. If data end inside of the step, fewer variables may
    have changed. A rank that passes another value to Python than others, such as a flag to log, may
    have a trace of its own, which reads whole gradients.
    """
    for node in graph.all_nodes():
        if node.op in _PYTHON_CALLS:
            return f"the step calls Python by {node.name}"
        if node.op.startswith("IteratorGetNext"):
            return f"data may end inside of the step, at {node.name}"
    passed, by_name = concrete.structured_input_signature
    for value in tf.nest.flatten([list(passed), dict(by_name)]):
        if value is None or isinstance(value, bool | int | float | str | bytes):
            return f"ranks may pass other values to Python than {value!r}"
    return ""


def agree(control: Control, sharding: UpdateSharding) -> dict[str, str]:
    """Returns gradients whose updates stay whole as graphs of ranks differ, with reasons.

    One rank may read a gradient, such as for a histogram, or print its norm.
    All ranks must call it.

    Args:
        control: reaches the other ranks.
        sharding: that of this rank's trace.

    Raises:
        EngineError: a rank is gone.
    """
    mine: dict[str, Any] = {
        name: [len(update.slots), len(update.weights), *update.sums]
        for name, update in sharding.updates.items()
    }
    digest = hashlib.sha256(json.dumps(mine, sort_keys=True).encode()).hexdigest()
    if len(set(control.all_gather(digest))) == 1:
        return {}
    everyone = control.all_gather({**sharding.whole, **mine})
    found = {name: _difference([theirs.get(name) for theirs in everyone]) for name in mine}
    return {name: reason for name, reason in found.items() if reason}


def _difference(updates: Sequence[Any]) -> str:
    """Returns how ranks differ: in updates, in reasons for whole ones, or in updating at all."""
    for rank, update in enumerate(updates):
        if not isinstance(update, list):
            return f"rank {rank}: {update or 'no variable is updated'}"
    for rank, update in enumerate(updates):
        if update[:2] != updates[0][:2]:
            return f"rank {rank} reads other variables of the optimizer than rank 0"
        if update[2:] != updates[0][2:]:
            sums = [", ".join(theirs[2:]) or "nothing" for theirs in (updates[0], update)]
            return f"rank 0 sums other values than rank {rank}: {sums[0]}; {sums[1]}"
    return ""
