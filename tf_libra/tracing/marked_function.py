"""The user's step as a `tf.function` of ours, whose gradients are marked when it is traced."""

import contextlib
import functools
import inspect
import types
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.eager.polymorphic_function import autograph_util
from tensorflow.python.framework import ops as tf_ops

from tf_libra.tracing import horovod_ops, jacobians, loops, strategy_ops, unaveraged
from tf_libra.tracing.label_flow import nodes_of
from tf_libra.tracing.marking import marking
from tf_libra.tracing.marks import MarkedGradient, Marks, Rules


@dataclass(frozen=True)
class Trace:
    """What one trace of a step does with gradients of trainable variables.

    Attributes:
        marked: those that the graph all-reduces.
        left: those that Horovod reduces as the script says, or a strategy of TensorFlow's,
            unplanned: why, by name.
        missing: variables of which a gradient was asked for and is None.
        jacobians: variables whose jacobian, of this rank's data alone, the step returns.
    """

    marked: tuple[MarkedGradient, ...]
    left: dict[str, str]
    missing: tuple[str, ...] = ()
    jacobians: tuple[str, ...] = ()

    @property
    def asks_for_nothing(self) -> bool:
        """Whether it takes no gradient of a variable, as where a flag makes it an evaluation."""
        return not (self.marked or self.left or self.missing or self.jacobians)


class Reductions(Protocol):
    """What a trace hands to the all-reduces of Horovod, or of a strategy of TensorFlow's."""

    left: dict[str, str]

    def left_alone(self, graph: Any) -> set[tuple[str, ...]]:
        """The marked calls of `gradient` in what was traced that are not to be marked."""
        ...

    def check(self, graph: Any) -> None:
        """Raises `ValueError` if a gradient may be averaged twice, or by nobody."""
        ...


OnTraced = Callable[[Trace], None]
Around = Callable[[Marks], AbstractContextManager[None]]


def _nothing_around(marks: Marks) -> AbstractContextManager[None]:
    return contextlib.nullcontext()


def step_name(function: Callable[..., Any]) -> str:
    """What to call the step in messages, and where ranks compare it: the same in every process."""
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
    """Calls a `tf.function` as it was written, where no other process has to be asked.

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
    rules: Callable[[], Rules] = Rules,
    around: Around = _nothing_around,
    is_method: Callable[[], bool] = lambda: False,
) -> "MarkedFunction":
    """A `tf.function` like `function`, each trace of which marks gradients.

    Args:
        function: a `tf.function`, whose own options are kept, or a plain function.
        on_traced: called at the end of each trace with what it does.
        rules: how gradients are treated, asked for by each trace.
        around: entered by each trace, with its gradients; left before `on_traced` is called.
        is_method: whether calls give first the object that it is a method of.

    Raises:
        ValueError: the step is compiled by XLA, which cannot call the all-reduce.
    """
    return MarkedFunction(function, on_traced, rules, around, is_method)


class MarkedFunction:
    """A step whose traces mark gradients. Called like the `tf.function` that it stands for."""

    def __init__(
        self,
        function: Callable[..., Any],
        on_traced: OnTraced,
        rules: Callable[[], Rules],
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
        self._known: dict[str, MarkedGradient] = {}
        self._left: dict[str, str] = {}
        # Calls of `gradient` whose results the script averages with Horovod, by variables' names.
        self._left_alone: set[tuple[str, ...]] = set()
        self._is_first = False
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
        """Traces the step, twice where the first trace shows that Horovod averages gradients."""
        left_alone = set(self._left_alone)
        function, given = self.called(args)
        self._is_first = True
        try:
            concrete = function.get_concrete_function(*given, **kwargs)
        finally:
            self._is_first = False
        if self._left_alone == left_alone:
            return concrete
        # Variables that the step makes are there by now.
        self._function = None
        self._functions_of.clear()
        function, given = self.called(args)
        return function.get_concrete_function(*given, **kwargs)

    def forget_traces(self) -> None:
        """Lets every later call trace again, such as under other rules."""
        self._function = None
        self._functions_of.clear()

    def experimental_get_tracing_count(self) -> int:
        """How often the step was traced."""
        found = [self._function, *self._functions_of.values()]
        return sum(int(one.experimental_get_tracing_count()) for one in found if one is not None)

    def _marking_clone(self, owner: Callable[[], Any] | None = None) -> Any:
        """A `tf.function` that marks gradients, bound to an object that it does not keep alive."""
        plain, autograph = self._template.python_function, self._template._autograph
        converted = plain
        if autograph:
            converted = autograph_util.py_func_from_autograph(
                plain, self._template._experimental_autograph_options
            )

        @functools.wraps(plain)
        def traced(*args: Any, **kwargs: Any) -> Any:
            if owner is not None:
                args = (owner(), *args)
            status = ag_ctx.Status.ENABLED if autograph else ag_ctx.Status.DISABLED
            rules = self._rules()
            others = strategy_ops if rules.by_strategy else horovod_ops
            with (
                marking(self._name, self._left_alone, rules) as marks,
                others.recognizing(self._name, marks) as reductions,
                self._around(marks),
                ag_ctx.ControlStatusCtx(status=status),
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

    def _finish(self, marks: Marks, reductions: Reductions, result: Any) -> None:
        graph = tf_ops.get_default_graph()
        averaged_by_horovod = reductions.left_alone(graph)
        if averaged_by_horovod - self._left_alone and self._is_first:
            self._left_alone |= averaged_by_horovod
            return  # this trace is not used, nor those of functions that it calls
        # A `tf.function` called by the step keeps its graph, with what an earlier trace marked.
        self._known.update({one.name: one for one in marks.marked})
        self._left.update(reductions.left)
        if averaged_by_horovod:
            (name, *_), *_ = averaged_by_horovod
            raise ValueError(
                f"{self._name} averages the gradient of {name!r} with Horovod in a tf.function"
                " that it calls, or in some of its traces only, and it would be averaged twice:"
                " use hvd.DistributedGradientTape, or take hvd.allreduce out of the step"
            )
        reductions.check(graph)
        local = jacobians.check(self._name, marks, graph, result)
        unaveraged.check(self._name, marks, graph)
        here = dict.fromkeys([*(one.name for one in marks.marked), *self._known])
        there, by_datasets = all_reduced(graph), loops.all_reduced_by_datasets(graph)
        marked = tuple(
            replace(one, in_dataset=one.executed_as in by_datasets)
            for one in (self._known[name] for name in here)
            if one.executed_as in there
        )
        names = {one.name for one in marked}
        left = {name: why for name, why in self._left.items() if name not in names}
        if left and not horovod_ops.are_in(graph, ("Horovod", "Collective")):
            left = {}  # they were an earlier trace's
        self._on_traced(Trace(marked, left, tuple(dict.fromkeys(marks.missing)), local))


def all_reduced(graph: tf.Graph) -> set[str]:
    """Names of the gradients that a graph, or a function in it, all-reduces."""
    return {
        name.decode()
        for node in nodes_of(graph)
        if node.op == "LibraAllReduce"
        for name in node.attr["tensor_names"].list.s
    }
