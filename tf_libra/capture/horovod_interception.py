"""Replaces the functions of Horovod that all-reduce, while a step is traced; see `horovod_ops`."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_libra.capture.gradient_registry import FLOATING, GradientRegistry
from tf_libra.capture.horovod_ops import HorovodReductions
from tf_libra.internal import patches, patching, tf_internal

_REDUCER = "_make_cached_allreduce_grads_fn.<locals>.allreduce_grads"


@contextlib.contextmanager
def intercept_reductions(step_name: str, registry: GradientRegistry) -> Iterator[HorovodReductions]:
    """Writes Horovod's all-reduces of gradients as ours while the context lasts.

    Args:
        step_name: name of the traced function, for messages.
        registry: the gradients of the trace.

    Yields:
        The inputs of Horovod so far.
    """
    reductions = HorovodReductions(step_name, registry)
    if "horovod.tensorflow" not in sys.modules:  # so the step cannot call it
        yield reductions
        return
    import horovod.tensorflow as hvd

    kinds = {hvd.Average: "average", hvd.Sum: "sum"}
    comparing = {hvd.Min: "op=Min", hvd.Max: "op=Max", hvd.Product: "op=Product"}

    def planned_names(tensors: Sequence[Any], op: Any, process_set: Any) -> list[str] | None:
        if not registry.is_tracing_thread():
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
        reduced = reductions.record_planned(registry.all_reduce(name, scaled, kinds[op]))
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
            names = planned_names([tensor], op, process_set)
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
            names = planned_names(tensors, op, process_set)
            if names is not None:
                return [
                    reduce(planned, tensor, op, prescale_factor, postscale_factor)
                    for planned, tensor in zip(names, tensors, strict=True)
                ]
            return original(
                tensors, name, op, prescale_factor, postscale_factor, ignore_name_scope, process_set
            )

        return call

    def gather(original: Any) -> Any:
        def call(argument: Any, *args: Any, **kwargs: Any) -> Any:
            if registry.is_tracing_thread():
                tensors = argument if isinstance(argument, list | tuple) else [argument]
                reductions.leave(tensors, "IndexedSlices")
            return original(argument, *args, **kwargs)

        return call

    def unconditional(direct: str) -> Callable[[Any], Any]:
        def make(original: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                process_set = kwargs.get("process_set", hvd.global_process_set)
                # The conditional tests for several workers, which are known here.
                if registry.is_tracing_thread() and process_set.process_set_id == 0:
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
                or not registry.is_tracing_thread()
            ):
                return original(function, *args, **kwargs)
            gradients, variables = args[0], args[1]
            present = [i for i, gradient in enumerate(gradients) if gradient is not None]
            reductions.record_wrapper(
                [variables[i] for i in present], [gradients[i] for i in present]
            )
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
                stack.enter_context(patching.replaced(patch, make))
            elif patch in (patches.ALLREDUCE, patches.GROUPED_ALLREDUCE):
                reductions.missing_functions.append(patch.path)
        stack.enter_context(patching.replaced(patches.CALL_FUNCTION, call_inline))
        if _keras_lacks_references():
            stack.enter_context(
                patching.replaced(
                    patches.KERAS_REFERENCE, lambda _: lambda self: tf_internal.Reference(self)
                )
            )
        yield reductions


def _keras_lacks_references() -> bool:
    variable = getattr(sys.modules.get("keras"), "Variable", None)
    return variable is not None and not hasattr(variable, "ref")
