"""Recognizes Horovod's all-reduces of gradients while a step is traced, so that they are planned.

Every way of averaging gradients with Horovod ends in two functions of `horovod.tensorflow`, which
write `HorovodAllreduce` and `HorovodGroupedAllreduce`. `horovod_interception` replaces them during
a trace. An input is a gradient if `tf.GradientTape.gradient` has returned it, or if it was made of
one and has the same shape. A `LibraAllReduce` with the same reduction then replaces Horovod's op,
inside Horovod's own compression and scaling, and is planned. All other inputs stay with Horovod:

- tensors that are no gradients, such as a loss that is averaged for display;
- gradients that no plan can include, such as those that a process set reduces;
- gradients that Horovod trains with in another shape (see `derived_collectives`).

TF-Libra must not average a gradient that Horovod averages later. A `DistributedGradientTape` is
known when gradients are requested. For a plain tape the reduction appears later in the same
trace; the step is then traced once more with those gradients excluded. So no graph has to be
changed back, and the script computes what it computes without TF-Libra.
"""

from collections.abc import Sequence
from typing import Any

from tf_libra.capture.dataflow.ancestors import ancestors, tensors_of
from tf_libra.capture.dataflow.traced_graph import CALLS, TracedGraph, called_functions
from tf_libra.capture.derived_collectives import (
    DerivedCollective,
    find_derived_collectives,
    find_reaching_weights,
    is_collective,
)
from tf_libra.capture.gradient_provenance import GradientOrigin, origins
from tf_libra.capture.gradient_registry import GradientCall, GradientRegistry
from tf_libra.capture.variables import variable_key, variable_name

HOROVOD_OPS = ("HorovodAllreduce", "HorovodGroupedAllreduce")


class HorovodReductions:
    """The inputs of Horovod's all-reduces in one trace.

    Attributes:
        left: gradients that Horovod reduces as the script says, with the reason, by name.
        missing_functions: functions that identify Horovod's all-reduces and that this release of
            Horovod lacks.
    """

    def __init__(self, step_name: str, registry: GradientRegistry) -> None:
        """Starts without inputs."""
        self._step_name = step_name
        self._registry = registry
        self._reduced: dict[GradientCall, set[int]] = {}
        self._ambiguous: list[GradientOrigin] = []
        self._compared: list[tuple[GradientOrigin, str]] = []
        self._unknown: list[Any] = []
        self._combines_others = False  # by Adasum
        self._explicit: set[GradientCall] = set()
        self._taken: list[tuple[Any, bool]] = []
        self._derived: list[DerivedCollective] = []
        self.left: dict[str, str] = {}
        self.missing_functions: list[str] = []

    def leave(self, tensors: Sequence[Any], reason: str, combines: bool = True) -> None:
        """Records that Horovod reduces inputs as the script says.

        Args:
            tensors: inputs of Horovod.
            reason: why they cannot be planned.
            combines: whether the reduction combines the ranks' gradients, instead of comparing them
                for instance.
        """
        for tensor in tensors:
            name = self.take(tensor) if combines else self._compare(tensor, reason)
            if name is not None:
                self.left[name] = reason

    def leave_adasum(self, tensors: Sequence[Any]) -> None:
        """Records that Horovod combines inputs by Adasum."""
        known = len(self._unknown)
        self.leave(tensors, "op=Adasum")
        self._combines_others |= len(self._unknown) > known

    def take_all(self, tensors: Sequence[Any]) -> list[str] | None:
        """Returns the names under which inputs are planned; None to leave all to Horovod."""
        self._taken.clear()
        names = [self.take(tensor) for tensor in tensors]
        planned = [name for name in names if name is not None]
        if len(planned) == len(tensors):
            return planned
        self.left.update(dict.fromkeys(planned, "grouped with what is no gradient"))
        return None

    def _compare(self, tensor: Any, reason: str) -> str | None:
        """Returns the name of the gradient that an input is, if a wrapper of Horovod reduces it."""
        origin = self._gradient_of(tensor)
        if origin is None:
            return None
        if origin.call in self._explicit or origin.call.by_horovod:
            return origin.name
        self._compared.append((origin, reason))
        return None

    def take(self, tensor: Any) -> str | None:
        """Returns the name under which an input is planned; None to leave it to Horovod."""
        origin = self._gradient_of(tensor)
        if origin is None:
            self._unknown.append(tensor)
            return None
        call, reduced = origin.call, self._reduced.setdefault(origin.call, set())
        # Two variables may share one tensor as their gradient.
        alike = [i for i, raw in enumerate(call.raw) if raw is call.raw[origin.index]]
        index = next((i for i in alike if i not in reduced), origin.index)
        reduced.add(index)
        is_itself = origin.is_itself or self._is_dense_form(tensor)
        self._taken.append((call.variables[index], is_itself))
        # A trace that has averaged the gradient before is not used.
        return None if call.is_reduced else call.names[index]

    def record_planned(self, reduced: Any) -> Any:
        """Records the all-reduce of the first taken input that has none yet, and returns it."""
        self._registry.by_horovod.append((reduced.op, *self._taken.pop(0)))
        return reduced

    def _is_dense_form(self, tensor: Any) -> bool:
        """Returns whether a tensor is the dense form of a sparse gradient."""
        is_sum = tensor.op.type == "UnsortedSegmentSum"
        return is_sum and self._registry.find(tensor.op.inputs[0]) is not None

    def record_wrapper(self, variables: Sequence[Any], gradients: Sequence[Any]) -> None:
        """Records that a wrapper of Horovod averages these gradients of these variables."""
        names = tuple(variable_name(variable) for variable in variables)
        call = self._registry.record_call(names, gradients, variables, is_reduced=False)
        self._explicit.add(call)
        ids = {id(variable) for variable in variables}
        for other in self._registry.calls:
            if not ids.isdisjoint(map(id, other.variables)):
                self._explicit.add(other)

    def averaged(self, graph: Any, trace: TracedGraph) -> set[int | str]:
        """Returns the variables whose gradients the script averages with Horovod.

        TF-Libra averages no gradient of such a variable, whether Horovod gets it or not. If a
        script averages a variable's gradient itself, another gradient of the same variable, as of a
        perturbed or adapted copy, is meant unaveraged.

        Args:
            graph: the traced graph.
            trace: the same graph as plain values.

        Returns:
            Variables by `variable_key`.
        """

        def is_known(tensor: Any) -> bool:
            return self._gradient_of(tensor) is not None

        # Values made of a jacobian say nothing about gradients.
        calls = [call for call in (*self._explicit, *self._reduced) if not call.is_jacobian]
        calls += [call for call in self._registry.calls if call.by_horovod]
        self._derived = find_derived_collectives(graph, trace, self._registry, is_known)
        derived_from = [origin for derived in self._derived for origin in derived.origins]
        calls += [origin.call for origin in derived_from]
        names = [origin.name for origin in derived_from]
        names += [name for derived in self._derived for name in derived.per_example]
        self.left.update(dict.fromkeys(names, "in another shape"))
        return {variable_key(variable) for call in calls for variable in call.variables}

    def check(self, graph: Any, trace: TracedGraph) -> None:
        """Raises `ValueError` if a gradient may be averaged twice, or not at all.

        Args:
            graph: the graph passed to `averaged`, with all gradients that Horovod averages
                excluded.
            trace: the same graph as plain values.
        """
        if self.missing_functions and any(node.op in HOROVOD_OPS for node in trace.all_nodes()):
            raise ValueError(
                f"{self._step_name} all-reduces with a Horovod that lacks"
                f" {', '.join(self.missing_functions)}, by which TF-Libra recognizes averaged"
                " gradients: remove Horovod's all-reduces from the step, or install Horovod 0.28"
            )
        self._check_all_or_none()
        self._check_ambiguous()
        averaged = [name for call in self._registry.calls if call.is_reduced for name in call.names]
        if self._combines_others and averaged:
            raise ValueError(
                f"{self._step_name} passes tensors to op=Adasum that are no gradients, such as"
                f" weight updates, and TF-Libra would average the gradient of {averaged[0]!r}"
                " before: pass gradients to Adasum, or train without tf_libra.optimize"
            )
        self._check_derived(graph, trace)
        self._check_functions(graph, trace)

    def _check_all_or_none(self) -> None:
        """Raises `ValueError` if Horovod averages some gradients of a tape and not others."""
        for call, reduced in self._reduced.items():
            # `per_example` checks jacobians.
            if call in self._explicit or call.by_horovod or call.is_jacobian:
                continue
            seen = {id(call.raw[i]) for i in reduced}
            known = [
                *self._ambiguous,
                *(origin for other in self._derived for origin in other.origins),
            ]
            seen |= {id(origin.call.raw[origin.index]) for origin in known}
            forgotten = [
                name
                for name, raw in zip(call.names, call.raw, strict=True)
                if raw is not None and id(raw) not in seen
            ]
            if forgotten:
                raise ValueError(
                    f"{self._step_name} averages the gradient of {call.names[min(reduced)]!r} with"
                    f" Horovod, but not that of {forgotten[0]!r}, which the same tape computes:"
                    " average all of them, or none"
                )

    def _check_ambiguous(self) -> None:
        """Raises `ValueError` if an input may be a gradient to train with or a metric."""
        for origin in self._ambiguous:
            if origin.call.is_reduced:
                raise ValueError(
                    f"{self._step_name} passes Horovod a scalar made of the gradient of"
                    f" {origin.name!r}, also a scalar, which may be the gradient or a metric: take"
                    " hvd.allreduce out of the step"
                )
        for origin, reason in self._compared:
            if origin.call.is_reduced:
                raise ValueError(
                    f"{self._step_name} passes Horovod a tensor made of the gradient of"
                    f" {origin.name!r}, with {reason}, which may be trained with or displayed: use"
                    " hvd.DistributedGradientTape to train with it, or take hvd.allreduce out of"
                    " the step"
                )

    def _check_derived(self, graph: Any, trace: TracedGraph) -> None:
        """Raises `ValueError` if TF-Libra averages a gradient that Horovod gets in another form."""
        averaged = {
            id(variable)
            for call in self._registry.calls
            if call.is_reduced
            for variable in call.variables
        }
        for derived in self._derived:
            for weight in derived.weights:
                if id(weight) in averaged:
                    raise ValueError(
                        f"{self._step_name} reduces {variable_name(weight)!r}, or values made of"
                        f" it, with {derived.op.type}, and TF-Libra would average its gradients"
                        " before: average gradients or weights, not both; tf_libra.optimize does"
                        " not support local SGD (rank-local updates)"
                    )
        raws = {
            part.op.name: origin.name
            for derived in self._derived
            for origin in derived.origins
            for part in tensors_of(origin.call.raw[origin.index])
        }
        reaching = find_reaching_weights(graph, trace, raws, self._registry, is_collective)
        for name in sorted(reaching):
            raise ValueError(
                f"{self._step_name} passes Horovod values made of the gradient of {raws[name]!r},"
                " and also updates weights with the gradient itself, which may be meant averaged"
                " or not: use hvd.DistributedGradientTape, or all-reduce each gradient"
            )

    def _check_functions(self, graph: Any, trace: TracedGraph) -> None:
        """Raises `ValueError` if a separately traced function may average a gradient again."""

        def calls(op: Any, kinds: Sequence[str]) -> bool:
            functions = called_functions(op.node_def, trace.functions)
            return any(node.op in kinds for node in trace.nodes_within(functions))

        for op in graph.get_operations():
            if op.type not in CALLS or not calls(op, HOROVOD_OPS):
                continue
            for tensor in op.inputs:
                origin = self._gradient_of(tensor)
                if origin is not None and origin.call.is_reduced:
                    raise ValueError(
                        f"{self._step_name} passes the gradient of {origin.name!r} to"
                        f" {op.get_attr('f').name}, a tf.function that all-reduces with Horovod,"
                        " and it might be averaged twice: call hvd.allreduce in the step itself"
                    )
        raws = [raw for call in self._registry.calls if call.is_reduced for raw in call.raw]
        shapes = [raw.shape for raw in raws if raw is not None]
        inputs = [tensor for derived in self._derived for tensor in derived.tensors]
        inputs += [
            tensor
            for tensor in self._unknown
            if tensor.shape.rank != 0 and any(map(tensor.shape.is_compatible_with, shapes))
        ]
        for tensor in inputs:
            for op in {id(ancestor.op): ancestor.op for ancestor in ancestors(tensor)}.values():
                if calls(op, ("LibraAllReduce",)):
                    raise ValueError(
                        f"{self._step_name} averages a result of {op.name!r} with Horovod, a"
                        " function or branch that computes gradients, and it might be averaged"
                        " twice: use hvd.DistributedGradientTape"
                    )

    def _gradient_of(self, tensor: Any) -> GradientOrigin | None:
        """Returns the gradient that an input is; None if it is none."""
        found = origins(self._registry, tensor)
        if not found:
            return None
        if found[0].is_itself:
            return found[0]
        rank = tensor.shape.rank
        for origin in found:
            if origin.call in self._explicit or origin.call.by_horovod:
                return origin
            if rank != 0 and origin.shape.is_compatible_with(tensor.shape):
                return origin
        if rank == 0 and len(found) == 1 and found[0].shape.rank == 0:
            self._ambiguous.append(found[0])
        return None
