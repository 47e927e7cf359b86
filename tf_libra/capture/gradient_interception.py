"""Sends every gradient of a trainable variable through one LibraAllReduce while a step is traced.

Hand-written steps and Keras get their gradients from `tf.GradientTape.gradient` alone, so its
results are replaced by averages. The traced graph is correct even if no pass rewrites it.

Only gradients that the step itself requests are averaged. A call of `gradient` while TensorFlow
computes another gradient is a part of that one: examples are the gradient functions of
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
from tf_libra.capture.variable_resolution import find_trained_variable
from tf_libra.capture.variables import plain, variable_key, variable_name, variables_of
from tf_libra.internal import patches, patching, tf_internal

# Attributes are replaced for the duration of a trace, and threads may trace concurrently.
_TRACING = threading.RLock()


@contextlib.contextmanager
def intercept_gradients(
    step_name: str, excluded: Container[int | str] = (), policy: ReductionPolicy | None = None
) -> Iterator[GradientRegistry]:
    """Averages gradients of variables over all ranks while the context lasts.

    Args:
        step_name: name of the traced function, for messages.
        excluded: variables, by `variable_key`, whose gradients Horovod averages; a call of
            `gradient` for one of them is left unchanged.
        policy: treatment of gradients.

    Yields:
        The registry of the gradients so far.

    Raises:
        ValueError: from `gradient` inside XLA or for a target made of averaged gradients; from
            `tf.gradients` by any name for variables; from the call of a `ConcreteFunction` that
            was traced elsewhere and computes gradients.
    """
    policy = policy or ReductionPolicy()
    with _TRACING, contextlib.ExitStack() as stack:
        registry = GradientRegistry(policy)
        graph = tf.compat.v1.get_default_graph()
        nested_functions.tag_graph(registry)

        def gradient(original: Any) -> Any:
            def call(tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
                if not policy.by_strategy:
                    reject_distribution_strategies(
                        step_name, traced_here=tf.compat.v1.get_default_graph() is graph
                    )
                if not registry.should_reduce:
                    return original(tape, target, sources, *args, **kwargs)
                higher_order.reject_second_derivative(step_name, registry, target)
                with registry.differentiating():
                    gradients = original(tape, target, sources, *args, **kwargs)
                if not policy.by_strategy and registry.per_example is not None:
                    per_example.record_gradients(registry, sources, gradients)
                    return gradients
                is_inner = not policy.by_strategy and tf_internal.could_possibly_record()
                if is_inner and policy.inner_gradients == "local":
                    return gradients
                is_ambiguous = is_inner and policy.inner_gradients == "reject"
                if is_ambiguous:
                    higher_order.reject_forward_derivative(step_name, sources, gradients)
                results = _reduce(step_name, policy, tape, sources, gradients, registry, excluded)
                if is_ambiguous:
                    higher_order.record_ambiguous(registry, sources, results)
                if policy.by_strategy:
                    return results
                return unreduced_gradients.tag_gradients(sources, results, of_trained=False)

            return call

        def call_flat(original: Any) -> Any:
            def call(concrete: Any, *args: Any, **kwargs: Any) -> Any:
                if registry.is_tracing_thread():
                    _reject_foreign_gradients(step_name, concrete, registry)
                return original(concrete, *args, **kwargs)

            return call

        replacements = {
            patches.GRADIENT: gradient,
            patches.CUSTOM_GRADIENT: _exclude_custom_gradients(registry),
            patches.FUNCTION_CONTEXT: nested_functions.retrace_nested_functions(registry),
            patches.DATASET_LOOP: dataset_loops.loop_in_graph(registry),
        }
        if not policy.by_strategy:  # a strategy reduces its inputs, whatever their origin
            replacements |= {
                patches.JACOBIAN: per_example.exclude_jacobians(step_name, registry),
                patches.BATCH_JACOBIAN: per_example.exclude_jacobians(step_name, registry),
                patches.VECTORIZED_MAP: per_example.exclude_vectorized_map(registry),
                patches.GRADIENTS_HELPER: _reject_variables_of_tf_gradients(step_name, registry),
                patches.CALL_FLAT: call_flat,
            }
        for patch, make in replacements.items():
            stack.enter_context(patching.replaced(patch, make))
        yield registry


def _reject_foreign_gradients(step_name: str, concrete: Any, registry: GradientRegistry) -> None:
    effect = nested_functions.describe_foreign_gradients(concrete, registry)
    if effect is not None:
        raise ValueError(
            f"{step_name} calls ConcreteFunction {concrete.graph.name!r}, which was traced"
            f" elsewhere, computes gradients and {effect}: they would not be averaged over the"
            " ranks; call the tf.function that it was made from"
        )


def _reject_variables_of_tf_gradients(
    step_name: str, registry: GradientRegistry
) -> Callable[[Any], Any]:
    """Replaces `_GradientsHelper`, which every name of `tf.gradients` calls."""

    def make(original: Any) -> Any:
        def call(ys: Any, xs: Any, *args: Any, **kwargs: Any) -> Any:
            if not registry.is_tracing_thread():
                return original(ys, xs, *args, **kwargs)
            if registry.should_reduce:
                higher_order.reject_second_derivative(step_name, registry, ys)
                for source in tf.nest.flatten(xs):
                    name = _trained_name(source)
                    if name is not None:
                        raise ValueError(
                            f"{step_name} computes the gradient of {name!r} with tf.gradients, as"
                            " optimizers of tf.compat.v1 do, and TF-Libra cannot average it: use"
                            " tf.GradientTape"
                        )
            is_requested = registry.should_reduce and not nested_functions.is_backward(
                tf.compat.v1.get_default_graph()
            )
            with registry.differentiating():
                gradients = original(ys, xs, *args, **kwargs)
            return unreduced_gradients.tag_gradients(xs, gradients) if is_requested else gradients

        return call

    return make


def _trained_name(source: Any) -> str | None:
    """Returns the name of the variable that is a source of `tf.gradients`; None if none is."""
    if isinstance(plain(source), tf.Variable):
        return variable_name(source)
    if not (isinstance(source, tf_internal.EagerTensor) and source.dtype == tf.resource):
        return None
    # Optimizers of tf.compat.v1 request the gradient of a variable's handle.
    for graph in enclosing_graphs(tf.compat.v1.get_default_graph()):
        for variable in variables_of(graph):
            if variable.handle is source:
                return variable_name(variable)
    return "a variable"


def _exclude_custom_gradients(registry: GradientRegistry) -> Callable[[Any], Any]:
    """Replaces the call of a function that has a custom gradient.

    If an outer tape records the call, that tape computes the custom gradient later. A gradient of
    a tape inside the function is then a part of the outer gradient.
    """

    def make(original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not (registry.is_tracing_thread() and tf_internal.could_possibly_record()):
                return original(*args, **kwargs)
            with registry.differentiating():
                return original(*args, **kwargs)

        return call

    return make


def _reduce(
    step_name: str,
    policy: ReductionPolicy,
    tape: Any,
    sources: Any,
    gradients: Any,
    registry: GradientRegistry,
    excluded: Container[int | str],
) -> Any:
    """Returns the gradients with those of trained variables averaged, and records the call."""
    flat_sources = tf.nest.flatten(sources)
    flat_gradients = tf.nest.flatten(gradients, expand_composites=False)
    results = list(flat_gradients)
    found = [find_trained_variable(source) for source in flat_sources]
    chosen = [
        i
        for i, variable in enumerate(found)
        if variable is not None and not registry.is_rank_local(variable)
    ]
    variables = [found[i] for i in chosen]
    raw = [flat_gradients[i] for i in chosen]
    names = tuple(variable_name(variable) for variable in variables)
    registry.missing += [
        name for name, gradient in zip(names, raw, strict=True) if gradient is None
    ]
    # Horovod's tapes average what they compute, and a strategy averages its inputs.
    by_horovod = hasattr(tape, "_allreduce_grads")
    is_excluded = any(variable_key(variable) in excluded for variable in variables)
    if by_horovod or policy.by_strategy or is_excluded:
        raw = registry.weighted(raw)
        for i, gradient in zip(chosen, raw, strict=True):
            results[i] = gradient
        registry.record_call(names, raw, variables, is_reduced=False, by_horovod=by_horovod)
        return tf.nest.pack_sequence_as(gradients, results)
    if chosen:
        _reject_xla(step_name)
    present = [i for i, gradient in enumerate(raw) if gradient is not None]
    # Gathered gradients that plans leave out come last and delay no planned one.
    order = sorted(
        backward_order([raw[i] for i in present], present),
        key=lambda i: registry.is_behind_groups(raw[i]),
    )
    averages = registry.average(
        [names[i] for i in order], registry.weighted([raw[i] for i in order])
    )
    for i, average in zip(order, averages, strict=True):
        results[chosen[i]] = average
    registry.record_call(
        names, raw, variables, is_reduced=True, results=[results[i] for i in chosen]
    )
    return tf.nest.pack_sequence_as(gradients, results)


def reject_distribution_strategies(step_name: str, traced_here: bool = True) -> None:
    """Raises `ValueError` in the scope of a `tf.distribute` strategy, which averages by itself."""
    if not (traced_here and tf.distribute.has_strategy()):
        return
    kind = type(tf.distribute.get_strategy()).__name__
    if isinstance(tf.distribute.get_strategy(), tf.distribute.MultiWorkerMirroredStrategy):
        raise ValueError(
            f"{step_name} runs under {kind} in a Horovod job: start it without Horovod, with"
            " TF_CONFIG in the environment of every worker, or train without strategy.run and"
            " strategy.scope"
        )
    raise ValueError(
        f"{step_name} runs under {kind}, whose all-reduces TF-Libra does not plan: train with"
        " MultiWorkerMirroredStrategy, or under Horovod without strategy.run and strategy.scope,"
        " or without tf_libra.optimize"
    )


def _reject_scopes(step_name: str) -> None:
    """Raises `ValueError` in the scope of another strategy, or in a replica of this one."""
    strategy = tf.distribute.get_strategy()
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        reject_distribution_strategies(step_name)
    elif not tf.distribute.in_cross_replica_context():
        raise ValueError(
            f"{step_name} is decorated with tf_libra.optimize and called by strategy.run: decorate"
            " the tf.function that calls strategy.run"
        )


def check_call_context(step_name: str, reason: str) -> None:
    """Raises `ValueError` if the step cannot be called from here.

    Args:
        step_name: for messages.
        reason: text appended to the error raised when called inside another `tf.function`.
    """
    _reject_scopes(step_name)
    if not tf.compat.v1.executing_eagerly_outside_functions():
        raise ValueError(
            f"{step_name} is decorated with tf_libra.optimize and called in a TensorFlow 1 graph,"
            " which no plan can rewrite: remove tf.compat.v1.disable_eager_execution(), or the"
            " tf.Graph around the call"
        )
    if not tf.executing_eagerly():
        raise ValueError(
            f"{step_name} is decorated with tf_libra.optimize and called inside another"
            f" tf.function{reason}"
        )


def reject_eager_functions(step_name: str) -> None:
    """Raises `ValueError` if every `tf.function` runs as plain Python, without a graph."""
    if tf.config.functions_run_eagerly():
        raise ValueError(
            f"{step_name} runs under tf.config.run_functions_eagerly(True), which leaves no graph"
            " to plan: remove that call, or debug with one process, in which the step runs as it is"
        )


def _reject_xla(step_name: str) -> None:
    name = tf_internal.xla_function_name(tf.compat.v1.get_default_graph())
    if name is not None:
        raise ValueError(
            f"{step_name} computes gradients in {name!r}, which is compiled with"
            " jit_compile=True, and XLA cannot call the all-reduce; remove jit_compile=True from it"
        )
