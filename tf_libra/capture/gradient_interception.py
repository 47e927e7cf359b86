"""Sends every gradient of a trainable variable through one LibraAllReduce while a step is traced.

`tf.GradientTape.gradient` is the one place through which hand-written steps get their gradients.
The graph that comes out averages correctly even if no pass ever touches it.

What is averaged are the gradients that the step itself asks for. A call of `gradient` that is made
while TensorFlow computes another gradient is a part of that one: so the gradient functions of
`tf.recompute_grad` and `tf.custom_gradient`, and the rows of a jacobian.
"""

import contextlib
import threading
from collections.abc import Callable, Container, Iterator
from typing import Any

import tensorflow as tf

from tf_libra.capture import (
    dataset_loops,
    higher_order,
    nested_functions,
    per_example,
    unreduced_gradients,
)
from tf_libra.capture.backward_order import backward_order
from tf_libra.capture.dataflow.ancestors import enclosing_graphs
from tf_libra.capture.gradient_registry import GradientRegistry, ReductionPolicy
from tf_libra.capture.variable_resolution import trained
from tf_libra.capture.variables import plain, variable_key, variable_name, variables_of
from tf_libra.internal import patches, tf_internal

# Attributes are replaced for the duration of a trace, and threads may trace concurrently.
_TRACING = threading.RLock()


@contextlib.contextmanager
def marking(
    step_name: str, left_alone: Container[int | str] = (), rules: ReductionPolicy | None = None
) -> Iterator[GradientRegistry]:
    """While it lasts, gradients of variables are averaged over all ranks.

    Args:
        step_name: the function that is traced, for messages.
        left_alone: variables, by `variable_key`, whose gradients Horovod averages: a call of
            `gradient` that is about one of them is not marked.
        rules: how gradients are treated.

    Yields:
        The gradients so far.

    Raises:
        ValueError: from `gradient`, inside of XLA, or of what is differentiated again; from
            `tf.gradients` by any name, for variables; from the call of a `ConcreteFunction` that
            was made elsewhere and brings gradients.
    """
    rules = rules or ReductionPolicy()
    with _TRACING, contextlib.ExitStack() as stack:
        marks = GradientRegistry(rules)
        graph = tf.compat.v1.get_default_graph()
        nested_functions.mark_traced(marks)

        def gradient(original: Any) -> Any:
            def call(tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
                if not rules.by_strategy:
                    reject_distribution_strategies(
                        step_name, traced_here=tf.compat.v1.get_default_graph() is graph
                    )
                if not marks.concerned:  # a part of another gradient, or of another thread
                    return original(tape, target, sources, *args, **kwargs)
                higher_order.check(step_name, marks, target)
                with marks.differentiating():
                    gradients = original(tape, target, sources, *args, **kwargs)
                if not rules.by_strategy and marks.of_examples is not None:
                    per_example.note(marks, sources, gradients)
                    return gradients
                is_inner = not rules.by_strategy and tf_internal.could_possibly_record()
                if is_inner and rules.inner_gradients == "local":
                    return gradients
                is_undecided = is_inner and rules.inner_gradients is None
                if is_undecided:
                    higher_order.check_tangents(step_name, sources, gradients)
                results = _mark(step_name, rules, tape, sources, gradients, marks, left_alone)
                if is_undecided:
                    higher_order.note(marks, sources, results)
                if rules.by_strategy:
                    return results
                return unreduced_gradients.labelled(sources, results, of_trained=False)

            return call

        def call_flat(original: Any) -> Any:
            def call(concrete: Any, *args: Any, **kwargs: Any) -> Any:
                if marks.is_tracing_thread():
                    _refuse_gradients_brought(step_name, concrete, marks)
                return original(concrete, *args, **kwargs)

            return call

        made = {
            patches.GRADIENT: gradient,
            patches.CUSTOM_GRADIENT: _serving_the_outer_tape(marks),
            patches.FUNCTION_CONTEXT: nested_functions.own_traces(marks),
            patches.DATASET_LOOP: dataset_loops.of_the_graph(marks),
        }
        if not rules.by_strategy:  # which reduces whatever it is given, wherever that comes from
            made[patches.JACOBIAN] = per_example.exclude_jacobians(step_name, marks)
            made[patches.BATCH_JACOBIAN] = per_example.exclude_jacobians(step_name, marks)
            made[patches.VECTORIZED_MAP] = per_example.exclude_vectorized_map(marks)
            made[patches.GRADIENTS_HELPER] = _refusing_variables(step_name, marks)
            made[patches.CALL_FLAT] = call_flat
        for patch, make in made.items():
            stack.enter_context(patches.replaced(patch, make))
        yield marks


def _refuse_gradients_brought(step_name: str, concrete: Any, marks: GradientRegistry) -> None:
    why = nested_functions.gradients_brought(concrete, marks)
    if why is not None:
        raise ValueError(
            f"{step_name} calls the ConcreteFunction {concrete.graph.name!r}, which was made"
            f" elsewhere, computes gradients and {why}: they would not be averaged over the ranks;"
            " call the tf.function that it was made from"
        )


def _refusing_variables(step_name: str, marks: GradientRegistry) -> Callable[[Any], Any]:
    """Replaces `_GradientsHelper`, which `tf.gradients` calls under any name that it has."""

    def make(original: Any) -> Any:
        def call(ys: Any, xs: Any, *args: Any, **kwargs: Any) -> Any:
            if not marks.is_tracing_thread():
                return original(ys, xs, *args, **kwargs)
            if marks.concerned:
                higher_order.check(step_name, marks, ys)
                for source in tf.nest.flatten(xs):
                    name = _name_of_trained(source)
                    if name is not None:
                        raise ValueError(
                            f"{step_name} takes the gradient of {name!r} by tf.gradients, as"
                            " optimizers of tf.compat.v1 do, where it is not averaged over the"
                            " ranks: use tf.GradientTape"
                        )
            is_asked_for = marks.concerned and not nested_functions.is_backward(
                tf.compat.v1.get_default_graph()
            )
            with marks.differentiating():
                gradients = original(ys, xs, *args, **kwargs)
            return unreduced_gradients.labelled(xs, gradients) if is_asked_for else gradients

        return call

    return make


def _name_of_trained(source: Any) -> str | None:
    """The name of the variable by which `tf.gradients` is to differentiate, if it is one."""
    if _is_trainable_variable(source):
        return variable_name(source)
    if not (isinstance(source, tf_internal.EagerTensor) and source.dtype == tf.resource):
        return None
    # Optimizers of tf.compat.v1 ask for the gradient of a variable's handle.
    for graph in enclosing_graphs(tf.compat.v1.get_default_graph()):
        for variable in variables_of(graph):
            if variable.handle is source:
                return variable_name(variable)
    return "a variable"


def _serving_the_outer_tape(marks: GradientRegistry) -> Callable[[Any], Any]:
    """Replaces what calls a function that has a gradient of its own.

    If a tape outside records the call, the gradient of that function is requested later: what a
    tape inside of it computes serves this one.
    """

    def make(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not (marks.is_tracing_thread() and tf_internal.could_possibly_record()):
                return original(*args, **kwargs)
            with marks.differentiating():
                return original(*args, **kwargs)

        return call

    return make


def _mark(
    step_name: str,
    rules: ReductionPolicy,
    tape: Any,
    sources: Any,
    gradients: Any,
    marks: GradientRegistry,
    left_alone: Container[int | str],
) -> Any:
    flat_sources = tf.nest.flatten(sources)
    flat_gradients = tf.nest.flatten(gradients, expand_composites=False)
    results = list(flat_gradients)
    differentiated_by = [trained(source) for source in flat_sources]
    chosen = [
        i
        for i, variable in enumerate(differentiated_by)
        if variable is not None and not marks.is_own(variable)
    ]
    variables = [differentiated_by[i] for i in chosen]
    raw = [flat_gradients[i] for i in chosen]
    names = tuple(variable_name(variable) for variable in variables)
    # A variable that the loss does not depend on has none, as without us.
    marks.missing.extend(name for name, one in zip(names, raw, strict=True) if one is None)
    # Horovod's tapes average what they compute, and a strategy what it is given.
    by_horovod = hasattr(tape, "_allreduce_grads")
    is_left = any(variable_key(variable) in left_alone for variable in variables)
    if by_horovod or rules.by_strategy or is_left:
        marks.note(names, raw, variables, is_marked=False, by_horovod=by_horovod)
        return gradients
    if chosen:
        _refuse_xla(step_name)
    there = [i for i, one in enumerate(raw) if one is not None]
    # What is gathered comes last: no plan is about it, and it is to hold up nothing.
    order = sorted(
        backward_order([raw[i] for i in there], there), key=lambda i: marks.is_gathered(raw[i])
    )
    averages = marks.average([names[i] for i in order], [raw[i] for i in order])
    for i, average in zip(order, averages, strict=True):
        results[chosen[i]] = average
    marks.note(names, raw, variables, is_marked=True, results=[results[i] for i in chosen])
    return tf.nest.pack_sequence_as(gradients, results)


def reject_distribution_strategies(step_name: str, traced_here: bool = True) -> None:
    """Raises `ValueError` in the scope of a `tf.distribute` strategy, which averages by itself."""
    if traced_here and tf.distribute.has_strategy():
        kind = type(tf.distribute.get_strategy()).__name__
        if isinstance(tf.distribute.get_strategy(), tf.distribute.MultiWorkerMirroredStrategy):
            raise ValueError(
                f"{step_name} runs under {kind}, and in a job of Horovod's: start it without"
                " Horovod, with TF_CONFIG in the environment of every worker, or train without"
                " strategy.run and strategy.scope"
            )
        raise ValueError(
            f"{step_name} runs under {kind}, whose all-reduces TF-Libra does not plan: train with"
            " MultiWorkerMirroredStrategy, or under Horovod, without strategy.run and"
            " strategy.scope, or without tf_libra.optimize"
        )


def _refuse_scopes(step_name: str) -> None:
    """Raises `ValueError` in the scope of another strategy, or in a replica of this one."""
    strategy = tf.distribute.get_strategy()
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        reject_distribution_strategies(step_name)
    elif not tf.distribute.in_cross_replica_context():
        raise ValueError(
            f"{step_name} is decorated with tf_libra.optimize, and called by strategy.run: decorate"
            " the tf.function that calls strategy.run"
        )


def check_call_context(step_name: str, why: str) -> None:
    """Raises `ValueError` where a step cannot be called from.

    Args:
        step_name: for messages.
        why: not from inside of another `tf.function`, as the end of a sentence.
    """
    _refuse_scopes(step_name)
    if not tf.compat.v1.executing_eagerly_outside_functions():
        raise ValueError(
            f"{step_name} is decorated with tf_libra.optimize, and called in a graph of version 1:"
            " no plan can follow it where eager execution is switched off; take"
            " tf.compat.v1.disable_eager_execution(), or the tf.Graph around it, out"
        )
    if not tf.executing_eagerly():
        raise ValueError(
            f"{step_name} is decorated with tf_libra.optimize, and called from inside of another"
            f" tf.function{why}"
        )


def reject_eager_functions(step_name: str) -> None:
    """Raises `ValueError` where every `tf.function` runs as plain Python, without a graph."""
    if tf.config.functions_run_eagerly():
        raise ValueError(
            f"{step_name} runs under tf.config.run_functions_eagerly(True), and without a graph"
            " there is nothing to plan: take that out, or debug with one process, where the step"
            " runs as it is"
        )


def _refuse_xla(step_name: str) -> None:
    if tf_internal.is_in_xla_context(tf.compat.v1.get_default_graph()):
        raise ValueError(
            f"{step_name} is compiled with jit_compile=True, and XLA cannot call the"
            " all-reduce; remove jit_compile=True from the training step"
        )


def _is_trainable_variable(source: Any) -> bool:
    return isinstance(plain(source), tf.Variable)
