"""The user's step as a `tf.function` of ours, whose gradients are marked when it is traced."""

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
    horovod_ops,
    mirrored_strategy_ops,
    per_example,
    unreduced_gradients,
)
from tf_libra.capture.dataflow import traced_graph
from tf_libra.capture.dataflow.forward import follow_labels, variable_inputs
from tf_libra.capture.dataflow.traced_graph import TracedGraph
from tf_libra.capture.gradient_interception import marking
from tf_libra.capture.gradient_registry import GradientRegistry, ReducedGradient, ReductionPolicy
from tf_libra.capture.variables import variable_key, variables_of
from tf_libra.internal import tf_internal


@dataclass(frozen=True)
class Trace:
    """The use that one trace of a step makes of gradients of trainable variables.

    Attributes:
        marked: those that the graph all-reduces.
        left: those that Horovod reduces as the script says, or a strategy of TensorFlow's,
            unplanned: why, by name.
        missing: variables whose gradient was requested and is None.
        jacobians: variables whose jacobian, of this rank's data alone, the step returns.
        of_examples: variables whose gradients per example it computes, returned or not.
        local: variables whose gradients stay each rank's own here, because the script averages
            them with Horovod in other traces and not in this one.
    """

    marked: tuple[ReducedGradient, ...]
    left: dict[str, str]
    missing: tuple[str, ...] = ()
    jacobians: tuple[str, ...] = ()
    of_examples: tuple[str, ...] = ()
    local: tuple[str, ...] = ()

    @property
    def asks_for_nothing(self) -> bool:
        """True if it takes no gradient of a variable, as if a flag makes it an evaluation."""
        return not (self.marked or self.left or self.missing or self.jacobians)


class Reductions(Protocol):
    """The tensors that a trace hands to all-reduces of Horovod, or of a TensorFlow strategy."""

    left: dict[str, str]

    def averaged(self, graph: Any, trace: TracedGraph) -> set[int | str]:
        """The variables, by `variable_key`, no gradient of which is to be marked."""
        ...

    def check(self, graph: Any, trace: TracedGraph) -> None:
        """Raises `ValueError` if a gradient may be averaged twice, or not at all."""
        ...


OnTraced = Callable[[Trace], None]
Around = Callable[[GradientRegistry], AbstractContextManager[None]]


def _nothing_around(marks: GradientRegistry) -> AbstractContextManager[None]:
    return contextlib.nullcontext()


def step_name(function: Callable[..., Any]) -> str:
    """Returns the step's name in messages and comparisons of ranks: the same in every process."""
    plain = getattr(function, "python_function", function)
    if isinstance(plain, functools.partial | functools.partialmethod):
        return step_name(plain.func)
    name = getattr(plain, "__qualname__", None) or getattr(plain, "__name__", None)
    return name if isinstance(name, str) else type(plain).__qualname__


def as_tf_function(function: Callable[..., Any]) -> Any:
    """`function` itself if it is a `tf.function`, else one made of it."""
    return function if hasattr(function, "python_function") else tf.function(function)


def called_alone(
    function: Any, is_method: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Calls a `tf.function` as it was written, if no other process takes part.

    Args:
        function: what was decorated.
        is_method: whether `args` have first the object that it is a method of.
        args: by position.
        kwargs: by name.
    """
    if args and is_method:  # of each object another one, which may make variables
        return function.__get__(args[0], type(args[0]))(*args[1:], **kwargs)
    return function(*args, **kwargs)


def marked_function(
    function: Callable[..., Any],
    on_traced: OnTraced,
    rules: Callable[[], ReductionPolicy] = ReductionPolicy,
    around: Around = _nothing_around,
    is_method: Callable[[], bool] = lambda: False,
) -> "InstrumentedFunction":
    """A `tf.function` like `function`, each trace of which marks gradients.

    Args:
        function: a `tf.function`, whose own options are kept, or a plain function.
        on_traced: called at the end of each trace with what it does.
        rules: returns how gradients are treated, called by each trace.
        around: entered by each trace, with its gradients; left before `on_traced` is called.
        is_method: whether calls give first the object that it is a method of.

    Raises:
        ValueError: the step is compiled by XLA, which cannot call the all-reduce.
    """
    return InstrumentedFunction(function, on_traced, rules, around, is_method)


class InstrumentedFunction:
    """A step whose traces mark gradients. Called like the `tf.function` that it stands for."""

    def __init__(
        self,
        function: Callable[..., Any],
        on_traced: OnTraced,
        rules: Callable[[], ReductionPolicy],
        around: Around = _nothing_around,
        is_method: Callable[[], bool] = lambda: False,
    ) -> None:
        """See `marked_function`."""
        self._template = as_tf_function(function)
        self._name = step_name(function)
        self._on_traced = on_traced
        self._rules = rules
        self._around = around
        self._is_method = is_method
        if getattr(self._template, "_jit_compile", None):
            raise ValueError(
                f"{self._name} is compiled with jit_compile=True, and XLA cannot call the"
                " all-reduce; remove jit_compile=True from the training step"
            )
        # Variables whose gradients the script averages with Horovod, in whichever trace.
        self._by_horovod: set[int | str] = set()
        # By trace, the variables whose gradients it all-reduces for a plain tape, with names.
        self._by_us: WeakKeyDictionary[tf.Graph, dict[int | str, str]] = WeakKeyDictionary()
        self._may_discard = self._is_stale = False
        self._function: Any = None
        # A `tf.function` makes variables in its first trace alone: each object has one, as in
        # TensorFlow, since each may make variables in its first step.
        self._functions_of: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    def called(self, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        """The `tf.function` of a call, and what that is given by position."""
        if args and self._is_method():
            if args[0] not in self._functions_of:
                self._functions_of[args[0]] = self._marking_clone(weakref.ref(args[0]))
            return self._functions_of[args[0]], args[1:]
        if self._function is None:
            self._function = self._marking_clone()
        return self._function, args

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the step."""
        function, args = self.called(args)
        return function(*args, **kwargs)

    def get_concrete_function(self, *args: Any, **kwargs: Any) -> Any:
        """Traces the step; again if that shows that Horovod averages what a trace has marked."""
        function, given = self.called(args)
        self._may_discard, self._is_stale = True, False
        try:
            concrete = function.get_concrete_function(*given, **kwargs)
        finally:
            self._may_discard = False
        if not self._is_stale:
            return concrete
        # Variables that the step makes are there by now.
        self._by_us.clear()
        self.forget_traces()
        function, given = self.called(args)
        return function.get_concrete_function(*given, **kwargs)

    def forget_traces(self) -> None:
        """Lets every later call trace again, such as under other rules."""
        self._function = None
        self._functions_of.clear()

    def experimental_get_tracing_count(self) -> int:
        """Returns how often the step was traced."""
        found = [self._function, *self._functions_of.values()]
        return sum(int(one.experimental_get_tracing_count()) for one in found if one is not None)

    def _marking_clone(self, owner: Callable[[], Any] | None = None) -> Any:
        """A `tf.function` that marks gradients, bound to an object that it does not keep alive."""
        plain, autograph = self._template.python_function, self._template._autograph
        converted = plain
        if autograph:
            converted = tf_internal.py_func_from_autograph(
                plain, self._template._experimental_autograph_options
            )

        @functools.wraps(plain)
        def traced(*args: Any, **kwargs: Any) -> Any:
            if owner is not None:
                args = (owner(), *args)
            status = (
                tf_internal.AutographStatus.ENABLED
                if autograph
                else tf_internal.AutographStatus.DISABLED
            )
            rules = self._rules()
            others = mirrored_strategy_ops if rules.by_strategy else horovod_ops
            with (
                marking(self._name, self._by_horovod, rules) as marks,
                others.recognizing(self._name, marks) as reductions,
                self._around(marks),
                tf_internal.AutographContext(status=status),
            ):
                result = converted(*args, **kwargs)
            self._finish(marks, reductions, result)
            return result

        if owner is not None:
            bound = inspect.signature(types.MethodType(plain, owner()))
            traced.__signature__ = bound  # type: ignore[attr-defined]
        clone = self._template._clone(python_function=traced)
        # AutoGraph converts the user's function, not what stands around it. That switches it off
        # for the whole trace, hence the status above.
        clone._autograph = False
        return clone

    def _finish(self, marks: GradientRegistry, reductions: Reductions, result: Any) -> None:
        graph = tf.compat.v1.get_default_graph()
        trace = traced_graph.read(graph)
        by_horovod = reductions.averaged(graph, trace)
        twice = [call for call in marks.calls if call.is_marked and call.is_about(by_horovod)]
        earlier = [one for one, names in self._by_us.items() if names.keys() & by_horovod]
        for one in earlier:
            self._check_earlier(one, by_horovod)
        only_elsewhere = self._by_horovod - by_horovod
        self._by_horovod |= by_horovod
        if self._may_discard and (twice or earlier):
            self._is_stale = True
            return  # neither this trace is used nor those before
        if twice:
            raise ValueError(
                f"{self._name} averages the gradient of {twice[0].names[0]!r} with Horovod in some"
                " of the times that it is traced only, and it would be averaged twice: use"
                " hvd.DistributedGradientTape, or take hvd.allreduce out of the step"
            )
        reductions.check(graph, trace)
        marked_calls = [call for call in marks.calls if call.is_marked]
        self._by_us[graph] = {
            variable_key(variable): name
            for call in marked_calls
            for name, variable in zip(call.names, call.variables, strict=True)
        }
        left_here = [call for call in marks.calls if call.is_about(only_elsewhere)]
        local = dict.fromkeys(name for call in left_here for name in call.names)
        of_examples = dict.fromkeys(
            name for call in marks.calls if call.is_jacobian for name in call.names
        )
        returned = per_example.check(self._name, marks, graph, trace, result)
        unreduced_gradients.check(self._name, marks, graph, trace)
        there, by_datasets = all_reduced(trace), dataset_loops.all_reduced_by_datasets(trace)
        marked = tuple(
            replace(one, in_dataset=one.executed_as in by_datasets)
            for one in {one.name: one for one in marks.marked}.values()
            if one.executed_as in there
        )
        names = {one.name for one in marked}
        left = {name: why for name, why in reductions.left.items() if name not in names}
        missing = dict.fromkeys(marks.missing)
        self._on_traced(
            Trace(marked, left, tuple(missing), returned, tuple(of_examples), tuple(local))
        )

    def _check_earlier(self, graph: tf.Graph, by_horovod: Set[int | str]) -> None:
        """Reject a gradient that Horovod averages now, and an earlier trace has trained with.

        In that trace a plain tape has computed the gradient, so TF-Libra has averaged it. The
        script, as it turns out, meant it as this rank's own. If the trace has only stored it, as
        in accumulators, the average of the stored averages is the same.

        Args:
            graph: the earlier trace.
            by_horovod: variables whose gradients Horovod averages now.

        Raises:
            ValueError: the earlier trace updates such a variable with a gradient, or returns one.
        """
        common = [key for key in self._by_us[graph] if key in by_horovod]
        variables = {variable_key(one): one for one in variables_of(graph)}
        shapes = [one.shape for one in variables.values() if one.shape.rank]
        returned = [one for one in graph.outputs if one.shape.rank and one.shape in shapes]
        found = follow_labels(
            traced_graph.read(graph),
            variable_inputs(graph),
            label=lambda node: node.name if node.op == "LibraAllReduce" else None,
            results=returned,
        )
        for key in common:
            # A finished graph does not tell what becomes of a variable that is an argument.
            is_written = key not in variables or found.written.get(id(variables[key]))
            if is_written or found.returned:
                raise ValueError(
                    f"{self._name} averages the gradient of {self._by_us[graph][key]!r} with"
                    " Horovod in one trace, and an earlier trace, by another argument, shape or"
                    " flag, has updated that variable with a gradient, or returned one, that"
                    " Horovod does not average; TF-Libra has averaged it, as it does for a plain"
                    " tape: average the gradient in both; or, for steps of each rank's own, call"
                    " the function first in the way in which Horovod averages, also after each"
                    " reset of the job, and TF-Libra averages none of that variable"
                )


def all_reduced(trace: TracedGraph) -> set[str]:
    """Names of the gradients that a trace all-reduces."""
    return {name for node in trace.all_nodes() for name in node.tensor_names}
