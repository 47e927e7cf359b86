"""Private names of TensorFlow and Keras: the only module that imports `tensorflow.python`.

A TensorFlow release that moves a name changes this module, and `patches` if it moves a patched
attribute. Importing this module loads TensorFlow: modules that must not load it import it inside
functions.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.core.ag_ctx import ControlStatusCtx as AutographContext
from tensorflow.python.autograph.core.ag_ctx import Status as AutographStatus
from tensorflow.python.autograph.core.ag_ctx import control_status_ctx as autograph_context
from tensorflow.python.autograph.impl.api import autograph_artifact
from tensorflow.python.autograph.impl.api import tf_convert as convert_to_autograph
from tensorflow.python.autograph.operators.control_flow import (
    _tf_iterator_for_stmt as iterator_loop,
)
from tensorflow.python.eager.context import FunctionCallOptions
from tensorflow.python.eager.context import async_wait as wait_for_async_ops
from tensorflow.python.eager.context import context as eager_context
from tensorflow.python.eager.forwardprop_util import pack_tangents
from tensorflow.python.eager.polymorphic_function.autograph_util import py_func_from_autograph
from tensorflow.python.eager.polymorphic_function.function_type_utils import (
    canonicalize_function_inputs,
)
from tensorflow.python.eager.record import (
    could_possibly_record,
    record_operation,
    stop_recording,
)
from tensorflow.python.framework import op_def_registry
from tensorflow.python.framework.auto_control_deps_utils import get_read_write_resource_inputs
from tensorflow.python.framework.composite_tensor import CompositeTensor
from tensorflow.python.framework.func_graph import FuncGraph, func_graph_from_py_func
from tensorflow.python.framework.ops import EagerTensor
from tensorflow.python.framework.smart_cond import smart_constant_value
from tensorflow.python.ops import control_flow_util, summary_ops_v2
from tensorflow.python.ops.control_flow_v2_func_graphs import CondBranchFuncGraph
from tensorflow.python.ops.resource_variable_ops import ResourceVariable
from tensorflow.python.profiler import trace as profiler_trace

# A module, because `patches.PROFILER_SESSION` replaces its `ProfilerSession`.
from tensorflow.python.profiler.internal import _pywrap_profiler as pywrap_profiler
from tensorflow.python.types.core import Value as TensorValue
from tensorflow.python.util.object_identity import Reference
from tensorflow.tsl.profiler.protobuf import trace_events_pb2

__all__ = [
    "AutographContext",
    "AutographStatus",
    "CompositeTensor",
    "CondBranchFuncGraph",
    "EagerTensor",
    "FuncGraph",
    "FunctionCallOptions",
    "Reference",
    "ResourceVariable",
    "TensorValue",
    "autograph_artifact",
    "autograph_context",
    "canonicalize_function_inputs",
    "convert_to_autograph",
    "could_possibly_record",
    "eager_context",
    "find_op_definition",
    "func_graph_from_py_func",
    "functional_model_class",
    "get_read_write_resource_inputs",
    "is_collecting_graphs",
    "iterator_loop",
    "pack_tangents",
    "profiler_trace",
    "py_func_from_autograph",
    "pywrap_profiler",
    "record_operation",
    "set_bytes_attribute",
    "smart_constant_value",
    "stop_recording",
    "trace_events_pb2",
    "wait_for_async_ops",
    "without_op_callbacks",
    "xla_function_name",
]


def find_op_definition(op_type: str) -> Any | None:
    """Returns the `OpDef` of an op type, or None for an op that this process does not know."""
    return op_def_registry.get(op_type)


def set_bytes_attribute(op: Any, name: str, value: bytes) -> None:
    """Sets an attribute of an op in a graph, which its `NodeDef` shows from then on."""
    op._set_attr(name, tf.compat.v1.AttrValue(s=value))


def xla_function_name(graph: Any) -> str | None:
    """Returns the name of the function that XLA compiles: a graph, or one that it is nested in.

    Returns:
        The innermost function's name; None if XLA compiles none.
    """
    while graph is not None:
        # A function that is compiled is traced in an XLA context of the graph around it.
        outer = getattr(graph, "outer_graph", None)
        if control_flow_util.InXlaContext(graph if outer is None else outer):
            return str(getattr(graph, "name", "a graph"))
        graph = outer
    return None


def is_collecting_graphs() -> bool:
    """Returns whether the user's `tf.summary.trace_on` collects graphs of executed functions."""
    return getattr(summary_ops_v2, "_current_trace_context", None) is not None


def functional_model_class() -> type | None:
    """Returns the class of functional Keras 3 models, or None for another Keras."""
    try:
        from keras.src.models.functional import Functional
    except ImportError:
        return None
    return Functional


@contextlib.contextmanager
def without_op_callbacks() -> Iterator[None]:
    """Hides new ops of this thread from callbacks, as of `tf.debugging.enable_check_numerics`."""
    state = eager_context()._thread_local_data
    callbacks, state.op_callbacks = state.op_callbacks, []
    try:
        yield
    finally:
        state.op_callbacks = callbacks
