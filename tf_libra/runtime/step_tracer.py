"""Calls of a training function, bound to the traces that they need."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import tensorflow as tf

from tf_libra import config
from tf_libra.capture.finite_check import FiniteCheck
from tf_libra.capture.gradient_interception import reject_eager_functions
from tf_libra.capture.gradient_registry import ReductionPolicy
from tf_libra.capture.gradient_weight import gradient_weight, is_joined, is_weighted
from tf_libra.capture.instrumented_function import InstrumentedFunction, Trace
from tf_libra.capture.variables import handles, variable_name
from tf_libra.coordination.control_plane import Control
from tf_libra.coordination.job import Job
from tf_libra.internal.formatting import listed
from tf_libra.reporting.run_reporter import RunReporter
from tf_libra.runtime import execution_check
from tf_libra.runtime.concrete_traces import ConcreteTraces, KnownTrace
from tf_libra.variable_sync.bound_variables import (
    BoundVariable,
    bound_variables,
    flat_arguments,
    is_named,
)


@dataclass(frozen=True)
class StepCall:
    """A trace with the arguments of one call.

    Attributes:
        trace: facts about the trace.
        concrete: the trace, as TensorFlow's concrete function.
        run: makes the call.
        arguments: inputs of the graph that are not captured, see `flat_arguments`.
    """

    trace: KnownTrace
    concrete: Any
    run: Callable[[], Any]
    arguments: list[Any]

    @classmethod
    def bind(
        cls, trace: KnownTrace, concrete: Any, function: Any, args: Any, kwargs: Any
    ) -> "StepCall":
        """Returns the call of an instrumented function with these arguments."""
        called, rest = function.resolve_call(args)
        arguments = flat_arguments(called, concrete, rest, kwargs)
        return cls(trace, concrete, partial(function, *args, **kwargs), arguments)

    @property
    def passed_variables(self) -> tuple[int, ...]:
        """Identities of the variables that are arguments."""
        return tuple(
            int(handle._id)
            for argument in self.arguments
            if isinstance(argument, tf.Variable)
            for handle in handles(argument)
        )

    def touched(self) -> tuple[BoundVariable, ...]:
        """Returns all variables that the call can touch, and tensors that were captured."""
        return bound_variables(self.concrete, self.arguments)

    def execute(self, control: Control, function: str, step: int, num_steps: int = 1) -> Any:
        """Makes the call, and checks that all unconditional all-reduces were executed.

        Args:
            control: reaches the other ranks.
            function: identity of the training function.
            step: number of the step, or of the last step in the graph.
            num_steps: number of steps in the graph.

        Raises:
            EngineError: an unconditional all-reduce was not executed.
        """
        execution_check.start_counting(function)
        with control.executing(f"step {step} of {function}"):
            result = self.run()
        execution_check.check_executed(function, self.trace.certain(self.concrete), step, num_steps)
        return result


class StepTracer:
    """Traces one training function, and binds its calls to the traces.

    Steps in which some rank has no batch have traces of their own, so that weights cost the other
    steps nothing.

    Attributes:
        function: the instrumented `tf.function` of steps in which every rank has a batch.
        has_trained: whether a trace has been used for a training step.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        identity: str,
        options: config.DataParallelOptions,
        is_method: Callable[[], bool],
    ) -> None:
        """Traces nothing yet.

        Args:
            function: a `tf.function` or a plain function.
            name: name of the function, for messages.
            identity: its identity, the same on every rank.
            options: the user's options.
            is_method: returns whether the first argument is the object whose method it is.

        Raises:
            ValueError: the function is compiled by XLA.
        """
        self._name = name
        self._identity = identity
        self._options = options
        self._traces = ConcreteTraces(name)
        self._control: Control | None = None
        self._watch: FiniteCheck | None = None
        self._by_strategy = False
        self._reporter: RunReporter | None = None
        self._next_step = 1
        self.has_trained = False
        self.function: Any = InstrumentedFunction(
            function, self._on_traced, self._policy, is_method=is_method
        )
        self._weighted: Any = InstrumentedFunction(
            function, self._on_traced, self._weighted_policy, is_method=is_method
        )

    def connect(self, control: Control, job: Job, watch: FiniteCheck | None) -> None:
        """Sets the ranks that compare the traces from now on.

        Args:
            control: reaches the other ranks.
            job: job of the ranks.
            watch: finds gradients that are not finite; None if no step is checked.
        """
        self._control = control
        self._by_strategy = job.by_strategy
        self._watch = watch

    def bind(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], step: int, reporter: RunReporter
    ) -> StepCall:
        """Returns the call with these arguments; traces the function if there is no trace for them.

        Args:
            args: positional arguments.
            kwargs: keyword arguments.
            step: number of the next step.
            reporter: receives warnings about a new trace.

        Raises:
            ValueError: on every rank: the ranks have different gradients, or `tf_libra.join` cannot
                weight them.
            EngineError: a rank is gone.
        """
        reject_eager_functions(self._name)
        self._next_step, self._reporter = step, reporter
        function = self._weighted if is_weighted() else self.function
        concrete = function.get_concrete_function(*args, **kwargs)
        if self._traces.is_renamed:
            # Only this trace has shown that rank 0 uses other names.
            function.forget_traces()
            concrete = function.get_concrete_function(*args, **kwargs)
        trace = self._traces.of(concrete)
        if is_joined():
            self._check_joined(trace.trace)
        return StepCall.bind(trace, concrete, function, args, kwargs)

    def is_rank_local(self, trace: Trace) -> bool:
        """Returns whether calls of the trace train nothing: other ranks may not make them."""
        return trace.has_no_gradients and self.has_trained

    def _on_traced(self, trace: Trace) -> None:
        assert self._reporter is not None
        wait_for_ranks = None
        if self._control is not None:
            if not self.is_rank_local(trace):
                self._control.set_step(self._next_step)
            if self.has_trained:
                wait_for_ranks = partial(self._control.barrier, "a new trace", self._identity)
        self._traces.add(trace, self._control, self._reporter, wait_for_ranks)

    def _check_joined(self, trace: Trace) -> None:
        if self._options.inner_gradients == "average":
            raise ValueError(
                f"{self._name}: inner_gradients must be 'local' or 'reject' in a loop over"
                " tf_libra.join, got 'average': the outer gradient of an averaged one has no weight"
            )
        if trace.gradients_per_example:
            raise ValueError(
                f"{self._name} computes gradients per example, of"
                f" {listed(trace.gradients_per_example)}, which the script averages itself, and"
                " tf_libra.join cannot weight: give each rank equally many batches"
            )

    def _weighted_policy(self) -> ReductionPolicy:
        return replace(self._policy(), weight=gradient_weight())

    def _policy(self) -> ReductionPolicy:
        return ReductionPolicy(
            function=self._identity,
            sparse_as_dense=self._options.sparse_as_dense,
            plans_rows=self._options.backend.plans_rows,
            error_feedback=self._options.error_feedback,
            inner_gradients=self._options.inner_gradients,
            rank_and_size=self._rank_and_size,
            watch=self._watch,
            by_strategy=self._by_strategy,
            is_rank_local=self._is_own,
            names=dict(self._traces.names),
        )

    def _is_own(self, variable: Any) -> bool:
        return is_named(variable_name(variable), handles(variable), self._options.local_variables)

    def _rank_and_size(self) -> tuple[int, int]:
        assert self._control is not None
        return self._control.rank, self._control.world_size


def check_trains(call: StepCall, name: str, job: Job) -> None:
    """Raises `ValueError` if the call computes no gradient that could be averaged.

    Args:
        call: first call of a trace.
        name: name of the training function.
        job: job of the ranks.
    """
    if call.trace.marked or call.trace.left:
        return
    if job.by_strategy:
        raise ValueError(
            f"{name} has {job.name} all-reduce no gradient of a variable, so there is nothing to"
            " plan: call strategy.run in it, and in that optimizer.apply_gradients"
        )
    per_example = call.trace.trace.gradients_per_example
    if per_example:
        raise ValueError(
            f"{name} computes only gradients per example, of {listed(per_example)}"
            " (tape.jacobian, tape.batch_jacobian, or a tape in tf.vectorized_map). They, and the"
            " update that the script makes of them, are rank-local: clip and sum them in the step,"
            " average the sum with hvd.allreduce, and update the variables with the average"
        )
    raise ValueError(
        f"{name} computes no gradient of a trainable variable with tf.GradientTape, so there is"
        " nothing to all-reduce"
    )
