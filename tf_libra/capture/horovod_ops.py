"""Recognises Horovod's all-reduces of gradients while a step is traced, so that they are planned.

Every way of averaging gradients with Horovod ends in two functions of `horovod.tensorflow`, which
write `HorovodAllreduce` and `HorovodGroupedAllreduce`. For the duration of a trace they are
replaced (see `patches`). What they are given is a gradient if it is one that
`tf.GradientTape.gradient` has returned, or was made of one and has kept its shape; then a
`LibraAllReduce` with the same reduction is written in place of Horovod's op, inside of Horovod's
own compression and scaling, and planned like any other. All else stays with Horovod: what is no
gradient, such as a loss that is averaged to be shown, and gradients that no plan can be about, as
those that a process set reduces, or that Horovod trains with in another shape (see `remade`).

A gradient that Horovod is to average must not be averaged by us before. A
`DistributedGradientTape` says so when gradients are requested of it. For a plain tape it turns out
later in the same trace; then the step is traced once more, with those gradients left alone. So
nothing has to be taken back from a graph, and the script means what it means without us.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_libra.capture.dataflow.ancestors import ancestors, tensors_of
from tf_libra.capture.dataflow.traced_graph import CALLS, TracedGraph, called_functions
from tf_libra.capture.derived_collectives import (
    DerivedCollective,
    is_collective,
    reaching_weights,
    remade,
)
from tf_libra.capture.gradient_provenance import GradientOrigin, origins
from tf_libra.capture.gradient_registry import FLOATING, GradientCall, GradientRegistry
from tf_libra.capture.variables import variable_key, variable_name
from tf_libra.internal import patches, tf_internal

HOROVOD_OPS = ("HorovodAllreduce", "HorovodGroupedAllreduce")
_REDUCER = "_make_cached_allreduce_grads_fn.<locals>.allreduce_grads"


class HorovodReductions:
    """The tensors that one trace hands to Horovod's all-reduces.

    Attributes:
        left: gradients that Horovod reduces as the script says: why not we, by name.
        unknown_to_us: functions by which Horovod's all-reduces are recognised, and which this
            release does not have.
    """

    def __init__(self, step_name: str, marks: GradientRegistry) -> None:
        self._step_name = step_name
        self._marks = marks
        self._reduced: dict[GradientCall, set[int]] = {}
        self._ambiguous: list[GradientOrigin] = []
        self._compared: list[tuple[GradientOrigin, str]] = []
        self._unknown: list[Any] = []
        self._combines_others = False  # by Adasum
        self._explicit: set[GradientCall] = set()
        self._taken: list[tuple[Any, bool]] = []
        self._others: list[DerivedCollective] = []
        self.left: dict[str, str] = {}
        self.unknown_to_us: list[str] = []

    def leave(self, tensors: Sequence[Any], why: str, combines: bool = True) -> None:
        """Notes that Horovod reduces these tensors as the script says.

        Args:
            tensors: as Horovod is given them.
            why: they cannot be planned.
            combines: whether ranks' gradients are combined by this, and not compared, say.
        """
        for tensor in tensors:
            name = self.take(tensor) if combines else self._compare(tensor, why)
            if name is not None:
                self.left[name] = why

    def leave_adasum(self, tensors: Sequence[Any]) -> None:
        """Notes that Horovod combines these tensors by Adasum."""
        known = len(self._unknown)
        self.leave(tensors, "op=Adasum")
        self._combines_others |= len(self._unknown) > known

    def take_all(self, tensors: Sequence[Any]) -> list[str] | None:
        """The names under which tensors are to be planned; None to leave them together."""
        self._taken.clear()
        names = [self.take(tensor) for tensor in tensors]
        planned = [name for name in names if name is not None]
        if len(planned) == len(tensors):
            return planned
        self.left.update(dict.fromkeys(planned, "grouped with what is no gradient"))
        return None

    def _compare(self, tensor: Any, how: str) -> str | None:
        """The name of the gradient that a tensor is, where a wrapper of Horovod's reduces that."""
        origin = self._stands_for(tensor)
        if origin is None:
            return None
        if origin.call in self._explicit or origin.call.by_horovod:
            return origin.name
        self._compared.append((origin, how))
        return None

    def take(self, tensor: Any) -> str | None:
        """The name under which a tensor given to Horovod is to be planned; None to leave it."""
        origin = self._stands_for(tensor)
        if origin is None:
            self._unknown.append(tensor)
            return None
        call, reduced = origin.call, self._reduced.setdefault(origin.call, set())
        # Two variables may well have one tensor for their gradients.
        alike = [i for i, raw in enumerate(call.raw) if raw is call.raw[origin.index]]
        index = next((i for i in alike if i not in reduced), origin.index)
        reduced.add(index)
        is_itself = origin.is_itself or self._is_made_dense(tensor)
        self._taken.append((call.variables[index], is_itself))
        # Where the gradient was marked as well this trace is not used.
        return None if call.is_marked else call.names[index]

    def planned(self, reduced: Any) -> Any:
        """Notes what all-reduces the first tensor that was taken and is not yet, and returns it."""
        self._marks.by_horovod.append((reduced.op, *self._taken.pop(0)))
        return reduced

    def _is_made_dense(self, tensor: Any) -> bool:
        """Returns whether a tensor is the dense form of a gradient of some rows."""
        is_sum = tensor.op.type == "UnsortedSegmentSum"
        return is_sum and self._marks.find(tensor.op.inputs[0]) is not None

    def reduces_all_of(self, variables: Sequence[Any], gradients: Sequence[Any]) -> None:
        """Notes that a wrapper of Horovod's averages these gradients of these variables."""
        names = tuple(variable_name(variable) for variable in variables)
        call = self._marks.note(names, gradients, variables, is_marked=False)
        self._explicit.add(call)
        ours = {id(variable) for variable in variables}
        for other in self._marks.calls:
            if not ours.isdisjoint(map(id, other.variables)):
                self._explicit.add(other)

    def averaged(self, graph: Any, trace: TracedGraph) -> set[int | str]:
        """The variables whose gradients the script averages with Horovod, by `variable_key`.

        No gradient of such a variable is to be marked, given to Horovod or not: if a script
        averages a variable's gradient itself, another one of the same variable (of a perturbed or
        adapted copy, say) is meant as it is.
        """
        # What is made of a jacobian says nothing of gradients.
        handed = [call for call in (*self._explicit, *self._reduced) if not call.is_jacobian]
        handed += [call for call in self._marks.calls if call.by_horovod]
        self._others = remade(
            graph, trace, self._marks, lambda one: self._stands_for(one) is not None
        )
        of_others = [origin for one in self._others for origin in one.origins]
        handed += [origin.call for origin in of_others]
        names = [one.name for one in of_others]
        names += [name for one in self._others for name in one.of_examples]
        self.left.update(dict.fromkeys(names, "in another shape"))
        return {variable_key(variable) for call in handed for variable in call.variables}

    def check(self, graph: Any, trace: TracedGraph) -> None:
        """Raises `ValueError` if a gradient may be averaged twice, or not at all.

        Args:
            graph: what `averaged` was given, with all gradients that Horovod averages left alone.
            trace: the same as plain values.
        """
        if self.unknown_to_us and any(node.op in HOROVOD_OPS for node in trace.all_nodes()):
            raise ValueError(
                f"{self._step_name} all-reduces with a Horovod that has no"
                f" {', '.join(self.unknown_to_us)}, by which TF-Libra knows what it averages: take"
                " Horovod's all-reduces out of the step, or install Horovod 0.28"
            )
        for call, reduced in self._reduced.items():
            # What becomes of jacobians is looked at apart.
            if call in self._explicit or call.by_horovod or call.is_jacobian:
                continue
            seen = {id(call.raw[i]) for i in reduced}
            seen |= {id(one.call.raw[one.index]) for one in self._ambiguous}
            seen |= {id(one.call.raw[one.index]) for other in self._others for one in other.origins}
            forgotten = [
                name
                for name, raw in zip(call.names, call.raw, strict=True)
                if raw is not None and id(raw) not in seen
            ]
            if forgotten:
                raise ValueError(
                    f"{self._step_name} averages the gradient of {call.names[min(reduced)]!r} with"
                    f" Horovod, but not that of {forgotten[0]!r}, which the same tape has"
                    " computed: average all of them, or none"
                )
        for origin in self._ambiguous:
            if origin.call.is_marked:
                raise ValueError(
                    f"{self._step_name} gives Horovod a scalar that was made of the gradient of"
                    f" {origin.name!r}, a scalar itself, and it cannot be told whether that is the"
                    " gradient or a figure to be shown: take hvd.allreduce out of the step"
                )
        for origin, how in self._compared:
            if origin.call.is_marked:
                raise ValueError(
                    f"{self._step_name} gives Horovod what was made of the gradient of"
                    f" {origin.name!r}, with {how}, and it cannot be told whether it trains with"
                    " that or shows it: use hvd.DistributedGradientTape to train with it, or take"
                    " hvd.allreduce out of the step"
                )
        averaged = [name for call in self._marks.calls if call.is_marked for name in call.names]
        if self._combines_others and averaged:
            raise ValueError(
                f"{self._step_name} combines by op=Adasum what is no gradient, such as a change of"
                f" weights, and the gradient of {averaged[0]!r} would be averaged before: give"
                " Adasum the gradients, or train without tf_libra.optimize"
            )
        self._check_others(graph, trace)
        self._check_functions(graph, trace)

    def _check_others(self, graph: Any, trace: TracedGraph) -> None:
        """Raises `ValueError` if we would also average what Horovod reduces in another form."""
        averaged = {
            id(variable)
            for call in self._marks.calls
            if call.is_marked
            for variable in call.variables
        }
        for other in self._others:
            for weight in other.weights:
                if id(weight) in averaged:
                    raise ValueError(
                        f"{self._step_name} reduces {variable_name(weight)!r} itself, or what was"
                        f" made of it, with {other.op.type}, and its gradients would be averaged"
                        " before: average gradients, or weights, and not both; steps of each"
                        " rank's own (local SGD) are none for tf_libra.optimize"
                    )
        raws = {
            part.op.name: origin.name
            for other in self._others
            for origin in other.origins
            for part in tensors_of(origin.call.raw[origin.index])
        }
        for name in sorted(reaching_weights(graph, trace, raws, self._marks, is_collective)):
            raise ValueError(
                f"{self._step_name} gives Horovod what was made of the gradient of {raws[name]!r},"
                " and updates weights with the gradient as it is, too: it cannot be told whether"
                " that is to be averaged; use hvd.DistributedGradientTape, or all-reduce each"
                " gradient"
            )

    def _check_functions(self, graph: Any, trace: TracedGraph) -> None:
        """Raises `ValueError` if a separately traced function may average a gradient again."""

        def calls(op: Any, kinds: Sequence[str]) -> bool:
            functions = called_functions(op.node_def, trace.functions)
            return any(node.op in kinds for node in trace.nodes_within(functions))

        for operation in graph.get_operations():
            if operation.type not in CALLS or not calls(operation, HOROVOD_OPS):
                continue
            for tensor in operation.inputs:
                origin = self._stands_for(tensor)
                if origin is not None and origin.call.is_marked:
                    raise ValueError(
                        f"{self._step_name} gives the gradient of {origin.name!r} to"
                        f" {operation.get_attr('f').name}, a"
                        " tf.function that all-reduces with Horovod, and it might be averaged"
                        " twice: call hvd.allreduce in the step itself"
                    )
        raws = [raw for call in self._marks.calls if call.is_marked for raw in call.raw]
        shapes = [raw.shape for raw in raws if raw is not None]
        given = [one for other in self._others for one in other.tensors]
        given += [
            one
            for one in self._unknown
            if one.shape.rank != 0 and any(map(one.shape.is_compatible_with, shapes))
        ]
        for tensor in given:
            for operation in {id(one.op): one.op for one in ancestors(tensor)}.values():
                if calls(operation, ("LibraAllReduce",)):
                    raise ValueError(
                        f"{self._step_name} averages with Horovod what {operation.name!r}, a"
                        " function or branch that computes gradients, returns, and it might be"
                        " averaged twice: use hvd.DistributedGradientTape"
                    )

    def _stands_for(self, tensor: Any) -> GradientOrigin | None:
        found = origins(self._marks, tensor)
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


@contextlib.contextmanager
def recognizing(step_name: str, marks: GradientRegistry) -> Iterator[HorovodReductions]:
    """While it lasts, Horovod's all-reduces of gradients are written as ours.

    Args:
        step_name: the function that is traced, for messages.
        marks: the gradients of the trace.

    Yields:
        What Horovod was given so far.
    """
    import horovod.tensorflow as hvd

    reductions = HorovodReductions(step_name, marks)
    kinds = {hvd.Average: "average", hvd.Sum: "sum"}
    comparing = {hvd.Min: "op=Min", hvd.Max: "op=Max", hvd.Product: "op=Product"}

    def names_of(tensors: Sequence[Any], op: Any, process_set: Any) -> list[str] | None:
        if not marks.is_tracing_thread():
            return None
        if op in comparing:
            reductions.leave(tensors, comparing[op], combines=False)
        elif not all(tensor.dtype in FLOATING for tensor in tensors):
            reductions.leave(tensors, f"dtype={tensors[0].dtype.name}", combines=False)
        elif op not in kinds:
            reductions.leave_adasum(tensors)
        elif process_set.process_set_id != 0:
            reductions.leave(tensors, f"process_set={process_set.ranks}")
        else:
            return reductions.take_all(tensors)
        return None

    def reduce(name: str, tensor: Any, op: Any, before: float, after: float) -> Any:
        scaled = tensor if before == 1.0 else tensor * tf.cast(before, tensor.dtype)
        reduced = reductions.planned(marks.all_reduce(name, scaled, kinds[op]))
        return reduced if after == 1.0 else reduced * tf.cast(after, tensor.dtype)

    def all_reduce(original: Any) -> Any:
        def call(
            tensor: Any,
            name: str | None = None,
            op: Any = hvd.Sum,
            prescale_factor: float = 1.0,
            postscale_factor: float = 1.0,
            ignore_name_scope: bool = False,
            process_set: Any = hvd.global_process_set,
        ) -> Any:
            names = names_of([tensor], op, process_set)
            if names is not None:
                return reduce(names[0], tensor, op, prescale_factor, postscale_factor)
            return original(
                tensor, name, op, prescale_factor, postscale_factor, ignore_name_scope, process_set
            )

        return call

    def grouped_all_reduce(original: Any) -> Any:
        def call(
            tensors: Sequence[Any],
            name: str | None = None,
            op: Any = hvd.Sum,
            prescale_factor: float = 1.0,
            postscale_factor: float = 1.0,
            ignore_name_scope: bool = False,
            process_set: Any = hvd.global_process_set,
        ) -> Any:
            names = names_of(tensors, op, process_set)
            if names is not None:
                return [
                    reduce(one, tensor, op, prescale_factor, postscale_factor)
                    for one, tensor in zip(names, tensors, strict=True)
                ]
            return original(
                tensors, name, op, prescale_factor, postscale_factor, ignore_name_scope, process_set
            )

        return call

    def gather(original: Any) -> Any:
        def call(given: Any, *args: Any, **kwargs: Any) -> Any:
            if marks.is_tracing_thread():
                tensors = given if isinstance(given, list | tuple) else [given]
                reductions.leave(tensors, "IndexedSlices")
            return original(given, *args, **kwargs)

        return call

    def unconditional(direct: str) -> Callable[[Any], Any]:
        def make(original: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                process_set = kwargs.get("process_set", hvd.global_process_set)
                # That there are several workers is known.
                if marks.is_tracing_thread() and process_set.process_set_id == 0:
                    return getattr(hvd, direct)(*args, **kwargs)
                return original(*args, **kwargs)

            return call

        return make

    def call_inline(original: Any) -> Any:
        def call(function: Any, *args: Any, **kwargs: Any) -> Any:
            # Horovod's optimizers average in a `tf.function`, which may have been traced before.
            python_function = function.python_function
            if (
                getattr(python_function, "__qualname__", "") != _REDUCER
                or not marks.is_tracing_thread()
            ):
                return original(function, *args, **kwargs)
            gradients, variables = args[0], args[1]
            there = [i for i, gradient in enumerate(gradients) if gradient is not None]
            reductions.reduces_all_of([variables[i] for i in there], [gradients[i] for i in there])
            return python_function(*args, **kwargs)

        return call

    with contextlib.ExitStack() as stack:
        for patch, make in {
            patches.ALLREDUCE: all_reduce,
            patches.GROUPED_ALLREDUCE: grouped_all_reduce,
            patches.ALLREDUCE_COND: unconditional("allreduce"),
            patches.GROUPED_ALLREDUCE_COND: unconditional("grouped_allreduce"),
            patches.ALLGATHER: gather,
            patches.GROUPED_ALLGATHER: gather,
        }.items():
            if patch.exists():
                stack.enter_context(patches.replaced(patch, make))
            elif patch in (patches.ALLREDUCE, patches.GROUPED_ALLREDUCE):
                reductions.unknown_to_us.append(patch.path)
        stack.enter_context(patches.replaced(patches.CALL_FUNCTION, call_inline))
        if _keras_lacks_references():
            stack.enter_context(
                patches.replaced(
                    patches.KERAS_REFERENCE, lambda _: lambda self: tf_internal.Reference(self)
                )
            )
        yield reductions


def _keras_lacks_references() -> bool:
    variable = getattr(sys.modules.get("keras"), "Variable", None)
    return variable is not None and not hasattr(variable, "ref")
