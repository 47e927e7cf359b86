"""All that is replaced in TensorFlow, Keras and Horovod, and for how long: one table.

Each attribute is replaced while a step is traced, and put back when the trace ends, however it
ends; the profiler's session while a step is profiled; `hvd.join` while an engine runs; commits of
elastic states from the first step on, and what they keep from the first step in stages on;
Horovod's shutdown from the first question for the ranks on. A user's model that is fitted has
methods of its own (`keras/`), and the launcher, another process, changes Horovod's (`launcher/`).
A replacement that other code has installed in the meantime stays: it may well call what it has
found there, which from then on does what it did without us.
"""

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

_ABSENT = object()


@dataclass(frozen=True, kw_only=True)
class Patch:
    """An attribute that is replaced.

    Attributes:
        module: from which it is reached.
        path: its name there, through classes and objects.
        why: what it is replaced for.
        since: the oldest release in which it is known to be there and to be called as it is now.
        reentry: what a call does that is made while another one runs.
        adds: whether there is no such attribute, and one is added.
    """

    module: str
    path: str
    why: str
    since: str
    reentry: str = "like any other"
    adds: bool = False

    @property
    def name(self) -> str:
        """Name of the attribute in its owner."""
        return self.path.rpartition(".")[2]

    def find_owner(self) -> Any:
        """The module, class or object of which it is an attribute.

        Raises:
            ImportError, AttributeError: there is none.
        """
        owner: Any = importlib.import_module(self.module)
        for part in self.path.split(".")[:-1]:
            owner = getattr(owner, part)
        return owner

    def exists(self) -> bool:
        """Returns whether the attribute exists."""
        try:
            return hasattr(self.find_owner(), self.name)
        except (ImportError, AttributeError):
            return False


_TENSORFLOW = "TensorFlow 2.18"
_HOROVOD = "Horovod 0.28"
_EAGER = "tensorflow.python.eager"

GRADIENT = Patch(
    module=f"{_EAGER}.backprop",
    path="GradientTape.gradient",
    why="the one place through which steps and Keras get gradients: what it returns is averaged",
    since=_TENSORFLOW,
    reentry="left alone: it is a part of the gradient that is being computed",
)
JACOBIAN = Patch(
    module=f"{_EAGER}.backprop",
    path="GradientTape.jacobian",
    why="asks for one gradient per element; they are this rank's own, and none is averaged",
    since=_TENSORFLOW,
    reentry=GRADIENT.reentry,
)
BATCH_JACOBIAN = Patch(
    module=f"{_EAGER}.backprop",
    path="GradientTape.batch_jacobian",
    why=JACOBIAN.why,
    since=_TENSORFLOW,
    reentry=GRADIENT.reentry,
)
VECTORIZED_MAP = Patch(
    module="tensorflow.python.ops.parallel_for.control_flow_ops",
    path="_pfor_impl",
    why="the root of tf.vectorized_map: gradients that its body asks for are of one example each",
    since=_TENSORFLOW,
    reentry="a part of the body that is being traced",
)
GRADIENTS_HELPER = Patch(
    module="tensorflow.python.ops.gradients_util",
    path="_GradientsHelper",
    why="the root of tf.gradients under all of its names, and of the optimizers of"
    " tf.compat.v1: refused for variables; also writes the gradients of functions and loops",
    since=_TENSORFLOW,
    reentry=GRADIENT.reentry,
)
CUSTOM_GRADIENT = Patch(
    module="tensorflow.python.ops.custom_gradient",
    path="_graph_mode_decorator",
    why="a tape inside of a function with a gradient of its own serves that gradient",
    since=_TENSORFLOW,
)
CALL_FLAT = Patch(
    module=f"{_EAGER}.polymorphic_function.concrete_function",
    path="ConcreteFunction._call_flat",
    why="one that was traced elsewhere would bring gradients that nobody averages: refused",
    since=_TENSORFLOW,
)
FUNCTION_CONTEXT = Patch(
    module=f"{_EAGER}.polymorphic_function.function_context",
    path="make_function_context",
    why="by it TensorFlow finds traces: every tf.function is traced for one training function",
    since=_TENSORFLOW,
    reentry="the inner function's name is added to the outer one's",
)
DATASET_LOOP = Patch(
    module="tensorflow.python.autograph.operators.control_flow",
    path="for_loop_registry.lookup",
    why="the body of a loop over a dataset becomes that of a loop of the graph, which the pass"
    " sees, and not a function of tf.data",
    since=_TENSORFLOW,
)
CALL_FUNCTION = Patch(
    module=f"{_EAGER}.polymorphic_function.polymorphic_function",
    path="Function.__call__",
    why="Horovod's optimizers average in a tf.function, which is called inline",
    since=_TENSORFLOW,
)

_GIVEN = "what it is given is a gradient, or not: a gradient is planned"
ALLREDUCE = Patch(module="horovod.tensorflow", path="_allreduce", why=_GIVEN, since=_HOROVOD)
GROUPED_ALLREDUCE = Patch(
    module="horovod.tensorflow", path="_grouped_allreduce", why=_GIVEN, since=_HOROVOD
)
_BRANCH = "each gradient in a branch of its own could not be fused: called without the branch"
ALLREDUCE_COND = Patch(
    module="horovod.tensorflow", path="_allreduce_cond", why=_BRANCH, since=_HOROVOD
)
GROUPED_ALLREDUCE_COND = Patch(
    module="horovod.tensorflow", path="_grouped_allreduce_cond", why=_BRANCH, since=_HOROVOD
)
_ROWS = "Horovod averages sparse gradients by it: noted, and left to Horovod"
ALLGATHER = Patch(module="horovod.tensorflow", path="allgather", why=_ROWS, since=_HOROVOD)
GROUPED_ALLGATHER = Patch(
    module="horovod.tensorflow", path="grouped_allgather", why=_ROWS, since=_HOROVOD
)
KERAS_REFERENCE = Patch(
    module="keras",
    path="Variable.ref",
    why="Horovod asks it of variables, and those of Keras 3 lack it",
    since="Keras 3.0",
    adds=True,
)
REPLICA_ALL_REDUCE = Patch(
    module="tensorflow.python.distribute.distribute_lib",
    path="ReplicaContextBase.all_reduce",
    why="of one replica it is its gradients, which Keras' optimizers hand through one op there: a"
    " pipeline would send all of them to all ranks",
    since=_TENSORFLOW,
)
KERAS_LAYER = Patch(
    module="keras",
    path="layers.Layer.__call__",
    why="where layers of Sequential and functional models end, a pipeline may be cut",
    since="Keras 3.0",
)
CONDITION = Patch(
    module="tensorflow.python.ops.cond",
    path="cond",
    why="tf.cond, AutoGraph's and Keras' conditions: one that updates variables of several stages"
    " of a pipeline becomes a selection for each variable",
    since=_TENSORFLOW,
    reentry="one within a branch is written like any other",
)
CAPTURE = Patch(
    module="tensorflow.python.framework.func_graph",
    path="FuncGraph.capture",
    why="what a step hands to a tf.function is called by a number of the process, and stages are"
    " told by names, which have to be the same on every rank and in every trace",
    since=_TENSORFLOW,
)

COLLECTIVE_ALL_REDUCE = Patch(
    module="tensorflow.python.distribute.cross_device_ops",
    path="CollectiveAllReduce._all_reduce",
    why="the one place through which a MultiWorkerMirroredStrategy all-reduces: a gradient is"
    " planned",
    since=_TENSORFLOW,
)

CHECK_FINITE = Patch(
    module="keras",
    path="optimizers.LossScaleOptimizer.check_finite",
    why="under a MultiWorkerMirroredStrategy it judges the gradients of this rank, and decides"
    " whether the rank all-reduces them: all ranks get one verdict",
    since="Keras 3.0",
)

PROFILER_SESSION = Patch(
    module="tensorflow.python.profiler.internal",
    path="_pywrap_profiler.ProfilerSession",
    why="a process has one profiler session: that of a traced step ends when the script starts its"
    " own",
    since=_TENSORFLOW,
)

JOIN = Patch(
    module="horovod.tensorflow.mpi_ops",
    path="MPI_LIB.horovod_join",
    why="lends a rank without data to Horovod's all-reduces, not to ours: refused for one alone",
    since=_HOROVOD,
)

SHUTDOWN = Patch(
    module="horovod.tensorflow.mpi_ops",
    path="_basics.MPI_LIB_CTYPES.horovod_shutdown",
    why="every shutdown calls it, whoever has imported that from where: with it a job ends, and the"
    " ranks of the next are other processes",
    since=_HOROVOD,
)

_KEPT = "a state keeps what each rank has: what stages have trained elsewhere is brought first"
COMMIT = Patch(
    module="horovod.common.elastic",
    path="State.commit",
    why="asks all ranks for new hosts, so ranks meet first; " + _KEPT,
    since=_HOROVOD,
)
HOST_UPDATES = Patch(
    module="horovod.common.elastic",
    path="State.check_host_updates",
    why="where workers come or go, each rank goes on with what it has, which is brought first",
    since=_HOROVOD,
)
# Called by `save`, `sync` and when a state is made.
KEEPING = tuple(
    Patch(module="horovod.tensorflow.elastic", path=path, why=_KEPT, since=_HOROVOD)
    for path in (
        "TensorFlowState._save_model",
        "TensorFlowKerasState._save_model",
        "TensorFlowKerasState.sync",
    )
)
BROADCASTING = tuple(
    Patch(
        module="horovod.tensorflow.functions",
        path=path,
        why="hvd.broadcast_variables ends in it: one rank's values become everybody's, so what"
        " stages have trained elsewhere is brought there first",
        since=_HOROVOD,
    )
    for path in ("_make_broadcast_group_fn", "_make_inplace_broadcast_group_fn")
)
RESTORING = tuple(
    Patch(
        module="horovod.tensorflow.elastic",
        path=f"{state}._load_model",
        why="gives variables the values that it has kept, also those that a rank has let go",
        since=_HOROVOD,
    )
    for state in ("TensorFlowState", "TensorFlowKerasState")
)

OF_TENSORFLOW = (
    GRADIENT,
    JACOBIAN,
    BATCH_JACOBIAN,
    VECTORIZED_MAP,
    GRADIENTS_HELPER,
    CUSTOM_GRADIENT,
    CALL_FLAT,
    FUNCTION_CONTEXT,
    DATASET_LOOP,
    CALL_FUNCTION,
)
OF_HOROVOD = (
    ALLREDUCE,
    GROUPED_ALLREDUCE,
    ALLREDUCE_COND,
    GROUPED_ALLREDUCE_COND,
    ALLGATHER,
    GROUPED_ALLGATHER,
)
OF_TRACES = (*OF_TENSORFLOW, *OF_HOROVOD, KERAS_REFERENCE)
TABLE = (
    *OF_TRACES, REPLICA_ALL_REDUCE, KERAS_LAYER, CONDITION, CAPTURE, COLLECTIVE_ALL_REDUCE,
    CHECK_FINITE, PROFILER_SESSION, JOIN, SHUTDOWN, COMMIT, HOST_UPDATES, *KEEPING, *BROADCASTING,
    *RESTORING,
)  # fmt: skip


@contextlib.contextmanager
def replaced(patch: Patch, make: Callable[[Any], Callable[..., Any]]) -> Iterator[None]:
    """While it lasts, an attribute is another callable.

    Args:
        patch: of the table.
        make: is given what stands there, and returns what is called in its place; None is what
            it is given of an attribute that is added.

    Raises:
        AttributeError: there is no such attribute.
    """
    from tf_libra.internal import tf_internal

    owner, name = patch.find_owner(), patch.name
    original = None if patch.adds else getattr(owner, name)
    # An object's method is found in its class, and would not be put back by setting it.
    own = vars(owner).get(name, _ABSENT)
    replacement = make(original)
    in_force = True

    def call(*args: Any, **kwargs: Any) -> Any:
        if in_force or original is None:
            return replacement(*args, **kwargs)
        return original(*args, **kwargs)

    if original is not None:
        functools.update_wrapper(call, original, updated=())
    # AutoGraph has nothing to convert here, and converts what is called as it would without us.
    tf_internal.autograph_artifact(call)
    setattr(owner, name, call)
    try:
        yield
    finally:
        in_force = False
        if vars(owner).get(name) is call:
            if own is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, own)
