"""The user's step as a `tf.function` of ours, whose gradients are marked when it is traced."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.eager.polymorphic_function import autograph_util
from tensorflow.python.framework import ops as tf_ops

from tf_libra.runtime.marking import MarkedGradient, marking

HOROVOD_OPS = ("HorovodAllreduce", "HorovodGroupedAllreduce")


def step_name(function: Callable[..., Any]) -> str:
    """What to call the step in messages."""
    plain = getattr(function, "python_function", function)
    return str(getattr(plain, "__qualname__", None) or repr(plain))


def as_tf_function(function: Callable[..., Any]) -> Any:
    """`function` itself if it is a `tf.function`, else one made of it."""
    return function if hasattr(function, "python_function") else tf.function(function)


def marked_function(
    function: Callable[..., Any],
    on_traced: Callable[[tuple[MarkedGradient, ...]], None],
) -> Any:
    """A `tf.function` like `function`, each trace of which marks gradients.

    Args:
        function: a `tf.function`, whose own options are kept, or a plain function.
        on_traced: called at the end of each trace with the gradients that the graph all-reduces.

    Raises:
        ValueError: the step is compiled by XLA, which cannot call the all-reduce.
    """
    template: Any = function if hasattr(function, "python_function") else tf.function(function)
    if getattr(template, "_jit_compile", None):
        raise ValueError(
            f"{step_name(function)} is compiled with jit_compile=True, and XLA cannot call the"
            " all-reduce; remove jit_compile=True from the training step"
        )
    plain = template.python_function
    autograph = template._autograph
    converted = plain
    if autograph:
        converted = autograph_util.py_func_from_autograph(
            plain, template._experimental_autograph_options
        )

    known: dict[str, MarkedGradient] = {}

    @functools.wraps(plain)
    def traced(*args: Any, **kwargs: Any) -> Any:
        status = ag_ctx.Status.ENABLED if autograph else ag_ctx.Status.DISABLED
        with marking(step_name(function)) as marked, ag_ctx.ControlStatusCtx(status=status):
            result = converted(*args, **kwargs)
        # A `tf.function` called by the step keeps its graph, with what an earlier trace marked.
        known.update({one.name: one for one in marked})
        here = dict.fromkeys([*(one.name for one in marked), *known])
        there = all_reduced(tf_ops.get_default_graph())
        on_traced(tuple(known[name] for name in here if name in there))
        return result

    clone = template._clone(python_function=traced)
    # AutoGraph converts the user's function, not what stands around it. That switches it off for
    # the whole trace, hence the status above.
    clone._autograph = False
    return clone


def all_reduced(graph: tf.Graph) -> set[str]:
    """Names of the gradients that a graph, or a function in it, all-reduces."""
    return {
        name.decode()
        for node in _nodes(graph)
        if node.op == "LibraAllReduce"
        for name in node.attr["tensor_names"].list.s
    }


def refuse_horovod_all_reduces(name: str, graph: tf.Graph) -> None:
    """Raises `ValueError` if gradients would be averaged twice."""
    for node in _nodes(graph):
        if node.op in HOROVOD_OPS:
            raise ValueError(
                f"{name} already averages gradients with Horovod ({node.op} {node.name!r}), and"
                " they would be averaged twice: take DistributedGradientTape,"
                " DistributedOptimizer or hvd.allreduce out of the step"
            )


def _nodes(graph: tf.Graph) -> Iterator[Any]:
    definition = graph.as_graph_def()
    yield from definition.node
    for function in definition.library.function:
        yield from function.node_def
