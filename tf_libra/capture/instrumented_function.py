"""The user's step as a `tf.function` whose traces average gradients."""

import contextlib
import functools
import inspect
import types
import weakref
from collections.abc import Callable, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import tensorflow as tf

from tf_libra.capture import (
    dataset_loops,
    horovod_interception,
    mirrored_strategy_ops,
    per_example,
    unreduced_gradients,
)
from tf_libra.capture.dataflow import traced_graph
from tf_libra.capture.dataflow.forward import follow_labels, variable_inputs
from tf_libra.capture.dataflow.traced_graph import TracedGraph
from tf_libra.capture.gradient_interception import intercept_gradients
from tf_libra.capture.gradient_registry import GradientRegistry, ReducedGradient, ReductionPolicy
from tf_libra.capture.variables import (
    optimizer_variables_outside_trace,
    plain,
    variable_key,
    variables_of,
)
from tf_libra.internal import tf_internal


@dataclass(frozen=True)
class Trace:
    """The use that one trace of a step makes of gradients of trainable variables.

    Attributes:
        reduced: gradients that the graph all-reduces.
        left: gradients that Horovod or a TensorFlow strategy reduces as the script says, unplanned;
            the reason, by name.
        missing: variables whose requested gradient is None.
        jacobians: variables whose rank-local jacobian the step returns.
        gradients_per_example: variables whose per-example gradients the step computes.
        local: variables whose gradients stay rank-local in this trace, because the script averages
            them with Horovod in other traces and not in this one.
    """

    reduced: tuple[ReducedGradient, ...]
    left: dict[str, str]
    missing: tuple[str, ...] = ()
    jacobians: tuple[str, ...] = ()
    gradients_per_example: tuple[str, ...] = ()
    local: tuple[str, ...] = ()

    @property
    def has_no_gradients(self) -> bool:
        """True if the trace computes no gradient of a variable, as an evaluation does."""
        return not (self.reduced or self.left or self.missing or self.jacobians)


class Reductions(Protocol):
    """The inputs of Horovod's all-reduces, or of a TensorFlow strategy's, in one trace."""

    left: dict[str, str]

    def averaged(self, graph: Any, trace: TracedGraph) -> set[int | str]:
        """Returns variables, by `variable_key`, whose gradients TF-Libra must not average."""
        ...

    def check(self, graph: Any, trace: TracedGraph) -> None:
        """Raises `ValueError` if a gradient may be averaged twice, or not at all."""
        ...


OnTrace = Callable[[Trace], None]
TraceContext = Callable[[GradientRegistry], AbstractContextManager[None]]


def _no_context(registry: GradientRegistry) -> AbstractContextManager[None]:
    return contextlib.nullcontext()


def step_name(function: Callable[..., Any]) -> str:
    """Returns the step's name for messages and comparisons of ranks: equal in every process."""
    plain = getattr(function, "python_function", function)
    if isinstance(plain, functools.partial | functools.partialmethod):
        return step_name(plain.func)
    name = getattr(plain, "__qualname__", None) or getattr(plain, "__name__", None)
    return name if isinstance(name, str) else type(plain).__qualname__


def as_tf_function(function: Callable[..., Any]) -> Any:
    """Returns `function` if it is a `tf.function`, else a `tf.function` made of it."""
    return function if hasattr(function, "python_function") else tf.function(function)


def call_plain(
    function: Any, is_method: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Calls a `tf.function` as it was written, in a job of one process.

    Args:
        function: the decorated function.
        is_method: whether the first of `args` is the object that the function is a method of.
        args: by position.
        kwargs: by name.
    """
    if args and is_method:  # each object has its own function, which may create variables
        return function.__get__(args[0], type(args[0]))(*args[1:], **kwargs)
    return function(*args, **kwargs)


class InstrumentedFunction:
    """A `tf.function` like the user's step, whose traces average gradients."""

    def __init__(
        self,
        function: Callable[..., Any],
        on_trace: OnTrace,
        policy: Callable[[], ReductionPolicy] = ReductionPolicy,
        context: TraceContext = _no_context,
        is_method: Callable[[], bool] = lambda: False,
    ) -> None:
        """Keeps the options of the user's `tf.function`.

        Args:
            function: a `tf.function` or a plain function.
            on_trace: called at the end of each trace with its description.
            policy: returns the treatment of gradients; called by each trace.
            context: entered by each trace with its registry; left before `on_trace` is called.
            is_method: returns whether the first argument of a call is the method's object.

        Raises:
            ValueError: XLA compiles the step and cannot call the all-reduce.
        """
        self._template = as_tf_function(function)
        self._name = step_name(function)
        self._on_trace = on_trace
        self._policy = policy
        self._context = context
        self._is_method = is_method
        if getattr(self._template, "_jit_compile", None):
            raise ValueError(
                f"{self._name} is compiled with jit_compile=True, and XLA cannot call the"
                " all-reduce; remove jit_compile=True from the training step"
            )
        # Variables whose gradients the script averages with Horovod in any trace.
        self._by_horovod: set[int | str] = set()
        # By trace, names of the variables whose gradients it all-reduces for a plain tape.
        self._by_us: WeakKeyDictionary[tf.Graph, dict[int | str, str]] = WeakKeyDictionary()
        self._may_discard = self._is_stale = False
        self._function: Any = None
        # A `tf.function` creates variables in its first trace alone, so each object has its own
        # function, as in TensorFlow.
        self._functions_of: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    def resolve_call(self, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        """Returns the `tf.function` of a call and its positional arguments."""
        if args and self._is_method():
            if args[0] not in self._functions_of:
                self._functions_of[args[0]] = self._instrumented_clone(weakref.ref(args[0]))
            return self._functions_of[args[0]], args[1:]
        if self._function is None:
            self._function = self._instrumented_clone()
        return self._function, args

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the step."""
        function, args = self.resolve_call(args)
        return function(*args, **kwargs)

    def get_concrete_function(self, *args: Any, **kwargs: Any) -> Any:
        """Traces the step, and retraces it if Horovod averages what the trace has averaged."""
        function, arguments = self.resolve_call(args)
        self._may_discard, self._is_stale = True, False
        try:
            concrete = function.get_concrete_function(*arguments, **kwargs)
        finally:
            self._may_discard = False
        if not self._is_stale:
            return concrete
        # The discarded trace has created the variables of the step.
        self._by_us.clear()
        self.forget_traces()
        function, arguments = self.resolve_call(args)
        return function.get_concrete_function(*arguments, **kwargs)

    def forget_traces(self) -> None:
        """Makes every later call retrace, for example under another policy."""
        self._function = None
        self._functions_of.clear()

    def experimental_get_tracing_count(self) -> int:
        """Returns the number of traces."""
        functions = [self._function, *self._functions_of.values()]
        return sum(
            int(function.experimental_get_tracing_count())
            for function in functions
            if function is not None
        )

    def _instrumented_clone(self, owner: Callable[[], Any] | None = None) -> Any:
        """Returns an instrumented `tf.function`, bound to an object that it does not keep alive."""
        plain, autograph = self._template.python_function, self._template._autograph
        converted = plain
        if autograph:
            converted = tf_internal.py_func_from_autograph(
                plain, self._template._experimental_autograph_options
            )
        statuses = tf_internal.AutographStatus

        @functools.wraps(plain)
        def traced(*args: Any, **kwargs: Any) -> Any:
            if owner is not None:
                args = (owner(), *args)
            policy = self._policy()
            library = mirrored_strategy_ops if policy.by_strategy else horovod_interception
            with (
                intercept_gradients(self._name, self._by_horovod, policy) as registry,
                library.intercept_reductions(self._name, registry) as reductions,
                self._context(registry),
                contextlib.nullcontext()
                if policy.by_strategy  # whose variables have a replica on every device
                else optimizer_variables_outside_trace(),
                tf_internal.AutographContext(
                    status=statuses.ENABLED if autograph else statuses.DISABLED
                ),
            ):
                result = converted(*args, **kwargs)
            self._finish(registry, reductions, result)
            return result

        if owner is not None:
            bound = inspect.signature(types.MethodType(plain, owner()))
            traced.__signature__ = bound  # type: ignore[attr-defined]
        clone = self._template._clone(python_function=traced)
        # AutoGraph converts the user's function, not this wrapper. Disabling it here disables it
        # for the whole trace, hence the status above.
        clone._autograph = False
        return clone

    def _finish(self, registry: GradientRegistry, reductions: Reductions, result: Any) -> None:
        """Checks a trace and reports it."""
        graph = tf.compat.v1.get_default_graph()
        trace = traced_graph.read(graph)
        by_horovod = reductions.averaged(graph, trace)
        reduced_calls = [call for call in registry.calls if call.is_reduced]
        twice = [call for call in reduced_calls if call.has_gradient_of(by_horovod)]
        earlier = [known for known, names in self._by_us.items() if names.keys() & by_horovod]
        for known in earlier:
            self._check_earlier(known, by_horovod)
        only_elsewhere = self._by_horovod - by_horovod
        self._by_horovod |= by_horovod
        if self._may_discard and (twice or earlier):
            self._is_stale = True  # neither this trace nor earlier ones are used
            return
        if twice:
            raise ValueError(
                f"{self._name} averages the gradient of {twice[0].names[0]!r} with Horovod in some"
                " of its traces only, and it would be averaged twice: use"
                " hvd.DistributedGradientTape, or take hvd.allreduce out of the step"
            )
        reductions.check(graph, trace)
        self._by_us[graph] = {
            variable_key(variable): name
            for call in reduced_calls
            for name, variable in zip(call.names, call.variables, strict=True)
        }
        returned = per_example.check_updates(self._name, registry, graph, trace, result)
        unreduced_gradients.check_updates(self._name, registry, graph, trace)
        present = {name for node in trace.all_nodes() for name in node.tensor_names}
        in_datasets = dataset_loops.gradients_in_datasets(trace)
        rounded = _rounded_by_script(registry)
        reduced = tuple(
            replace(
                gradient,
                in_dataset=gradient.name in in_datasets,
                rounded_from=rounded.get(gradient.name),
            )
            for gradient in {reduced.name: reduced for reduced in registry.reduced}.values()
            if gradient.name in present
        )
        names = {gradient.name for gradient in reduced}
        local = [call for call in registry.calls if call.has_gradient_of(only_elsewhere)]
        jacobians = [call for call in registry.calls if call.is_jacobian]
        self._on_trace(
            Trace(
                reduced,
                {name: why for name, why in reductions.left.items() if name not in names},
                missing=tuple(dict.fromkeys(registry.missing)),
                jacobians=returned,
                gradients_per_example=_names(jacobians),
                local=_names(local),
            )
        )

    def _check_earlier(self, graph: tf.Graph, by_horovod: Set[int | str]) -> None:
        """Rejects a gradient that Horovod averages now and that an earlier trace has trained with.

        In the earlier trace a plain tape computed the gradient, so TF-Libra averaged it, but the
        script meant a rank-local one. If the trace only stores the gradient, as in accumulators,
        the average of the stored averages is the same.

        Args:
            graph: the earlier trace.
            by_horovod: variables whose gradients Horovod averages now.

        Raises:
            ValueError: the earlier trace updates such a variable with a gradient, or returns one.
        """
        common = [key for key in self._by_us[graph] if key in by_horovod]
        variables = {variable_key(variable): variable for variable in variables_of(graph)}
        shapes = [variable.shape for variable in variables.values() if variable.shape.rank]
        returned = [
            output for output in graph.outputs if output.shape.rank and output.shape in shapes
        ]
        found = follow_labels(
            traced_graph.read(graph),
            variable_inputs(graph),
            label=lambda node: node.name if node.op == "LibraAllReduce" else None,
            results=returned,
        )
        for key in common:
            # A finished graph hides the writes to a variable that is an argument.
            is_written = key not in variables or found.written.get(id(variables[key]))
            if is_written or found.returned:
                raise ValueError(
                    f"{self._name} averages the gradient of {self._by_us[graph][key]!r} with"
                    " Horovod in this trace, but an earlier trace, for another argument, shape or"
                    " flag, has updated the variable with its gradient, or returned it, without"
                    " Horovod, so TF-Libra averaged it: average the gradient in both; or, for"
                    " rank-local steps, first call the function in the way that averages with"
                    " Horovod, also after each reset of the job"
                )


def _names(calls: list[Any]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for call in calls for name in call.names))


def _rounded_by_script(registry: GradientRegistry) -> dict[str, str]:
    """Returns the dtypes of variables whose gradients reach Horovod in a narrower one, by name."""
    found = {}
    for op, variable, _ in registry.by_horovod:
        dtype = plain(variable).dtype
        if op.inputs[0].dtype.size < dtype.size:
            found[op.get_attr("tensor_names")[0].decode()] = dtype.name
    return found
