"""Table of the attributes that TF-Libra replaces in TensorFlow, Keras and Horovod.

Most attributes are replaced while a step is traced, and restored when the trace ends or fails.
Others are replaced for longer:

- the profiler's session while a step is profiled;
- `hvd.join` while an engine runs;
- commits of elastic states from the first step on;
- saved values of elastic states from the first step on that leaves stale values;
- accesses of variables from the first step on one rank, in stages or with sharded updates on;
- Horovod's shutdown from the first query for the ranks on.

A fitted model gets methods of its own (`keras/`), and the launcher changes Horovod in another
process (`launcher/`).
"""

from tf_libra.internal.patching import Patch

_TENSORFLOW = "TensorFlow 2.18"
_HOROVOD = "Horovod 0.28"
_EAGER = "tensorflow.python.eager"

GRADIENT = Patch(
    module=f"{_EAGER}.backprop",
    path="GradientTape.gradient",
    why="steps and Keras get all gradients from it: its results are averaged",
    since=_TENSORFLOW,
    reentry="unchanged: part of the gradient that is being computed",
)
JACOBIAN = Patch(
    module=f"{_EAGER}.backprop",
    path="GradientTape.jacobian",
    why="requests one gradient per element; these are rank-local and not averaged",
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
    why="root of tf.vectorized_map: gradients in its body are per example",
    since=_TENSORFLOW,
    reentry="part of the body that is being traced",
)
GRADIENTS_HELPER = Patch(
    module="tensorflow.python.ops.gradients_util",
    path="_GradientsHelper",
    why="root of tf.gradients under all its names, and of the optimizers of tf.compat.v1: rejected"
    " for variables; also writes the gradients of functions and loops",
    since=_TENSORFLOW,
    reentry=GRADIENT.reentry,
)
CUSTOM_GRADIENT = Patch(
    module="tensorflow.python.ops.custom_gradient",
    path="_graph_mode_decorator",
    why="a tape inside a function with a custom gradient computes a part of that gradient",
    since=_TENSORFLOW,
)
CALL_FLAT = Patch(
    module=f"{_EAGER}.polymorphic_function.concrete_function",
    path="ConcreteFunction._call_flat",
    why="a function that was traced elsewhere would bring unaveraged gradients: rejected",
    since=_TENSORFLOW,
)
FUNCTION_CONTEXT = Patch(
    module=f"{_EAGER}.polymorphic_function.function_context",
    path="make_function_context",
    why="key of TensorFlow's trace cache: every tf.function is traced per training function",
    since=_TENSORFLOW,
    reentry="the inner function's name is added to the outer one's",
)
DATASET_LOOP = Patch(
    module="tensorflow.python.autograph.operators.control_flow",
    path="for_loop_registry.lookup",
    why="the body of a loop over a dataset becomes a part of the graph, which the pass sees,"
    " instead of a function of tf.data",
    since=_TENSORFLOW,
)
CALL_FUNCTION = Patch(
    module=f"{_EAGER}.polymorphic_function.polymorphic_function",
    path="Function.__call__",
    why="Horovod's optimizers average in a tf.function, which is called inline",
    since=_TENSORFLOW,
)
OPTIMIZER_VARIABLE = Patch(
    module="keras",
    path="optimizers.Optimizer.add_variable",
    why="a variable that is created in a trace needs a conditional and an initializer, which take a"
    " third of all tracing: an optimizer creates its variables eagerly",
    since="Keras 3.0",
)

_INPUT = "an input that is a gradient is planned"
ALLREDUCE = Patch(module="horovod.tensorflow", path="_allreduce", why=_INPUT, since=_HOROVOD)
GROUPED_ALLREDUCE = Patch(
    module="horovod.tensorflow", path="_grouped_allreduce", why=_INPUT, since=_HOROVOD
)
_BRANCH = "gradients in separate branches could not be fused: called without the branch"
ALLREDUCE_COND = Patch(
    module="horovod.tensorflow", path="_allreduce_cond", why=_BRANCH, since=_HOROVOD
)
GROUPED_ALLREDUCE_COND = Patch(
    module="horovod.tensorflow", path="_grouped_allreduce_cond", why=_BRANCH, since=_HOROVOD
)
_ROWS = "Horovod averages sparse gradients with it: recorded, and left to Horovod"
ALLGATHER = Patch(module="horovod.tensorflow", path="allgather", why=_ROWS, since=_HOROVOD)
GROUPED_ALLGATHER = Patch(
    module="horovod.tensorflow", path="grouped_allgather", why=_ROWS, since=_HOROVOD
)
KERAS_REFERENCE = Patch(
    module="keras",
    path="Variable.ref",
    why="Horovod calls it on variables, and Keras 3 variables lack it",
    since="Keras 3.0",
    adds=True,
)
REPLICA_ALL_REDUCE = Patch(
    module="tensorflow.python.distribute.distribute_lib",
    path="ReplicaContextBase.all_reduce",
    why="Keras' optimizers pass all gradients of the one replica through one op there, and a"
    " pipeline would send all of them to all ranks",
    since=_TENSORFLOW,
)
KERAS_LAYER = Patch(
    module="keras",
    path="layers.Layer.__call__",
    why="a pipeline may be split after layers of Sequential and functional models",
    since="Keras 3.0",
)
CONDITION = Patch(
    module="tensorflow.python.ops.cond",
    path="cond",
    why="tf.cond and conditionals of AutoGraph and Keras: a conditional that updates variables of"
    " several pipeline stages becomes a selection per variable",
    since=_TENSORFLOW,
    reentry="a nested conditional is written as usual",
)
CAPTURE = Patch(
    module="tensorflow.python.framework.func_graph",
    path="FuncGraph.capture",
    why="captures are named by a counter of the process, but stages need names that are equal on"
    " every rank and in every trace",
    since=_TENSORFLOW,
)

COLLECTIVE_ALL_REDUCE = Patch(
    module="tensorflow.python.distribute.cross_device_ops",
    path="CollectiveAllReduce._all_reduce",
    why="a MultiWorkerMirroredStrategy all-reduces only through it: gradients are planned",
    since=_TENSORFLOW,
)

CHECK_FINITE = Patch(
    module="keras",
    path="optimizers.LossScaleOptimizer.check_finite",
    why="under a MultiWorkerMirroredStrategy it decides by this rank's gradients whether the rank"
    " all-reduces them: all ranks get the same verdict",
    since="Keras 3.0",
)

PROFILER_SESSION = Patch(
    module="tensorflow.python.profiler.internal",
    path="_pywrap_profiler.ProfilerSession",
    why="a process has one profiler session: ours ends when the script starts its own",
    since=_TENSORFLOW,
)

JOIN = Patch(
    module="horovod.tensorflow.mpi_ops",
    path="MPI_LIB.horovod_join",
    why="serves Horovod's all-reduces for a rank without data, not ours: rejected unless all join",
    since=_HOROVOD,
)

SHUTDOWN = Patch(
    module="horovod.tensorflow.mpi_ops",
    path="_basics.MPI_LIB_CTYPES.horovod_shutdown",
    why="every shutdown ends in it, under any name: the job ends, and the ranks of the next job may"
    " be other processes",
    since=_HOROVOD,
)

_SYNCHRONIZED = (
    "a state saves each rank's values: those trained in other stages are synchronized first"
)
COMMIT = Patch(
    module="horovod.common.elastic",
    path="State.commit",
    why="queries new hosts on all ranks, so ranks synchronize first; " + _SYNCHRONIZED,
    since=_HOROVOD,
)
HOST_UPDATES = Patch(
    module="horovod.common.elastic",
    path="State.check_host_updates",
    why="ranks continue with their own values when workers change: these are synchronized first",
    since=_HOROVOD,
)
# Called by `save`, `sync` and the constructors of states.
KEEPING = tuple(
    Patch(module="horovod.tensorflow.elastic", path=path, why=_SYNCHRONIZED, since=_HOROVOD)
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
        why="hvd.broadcast_variables ends in it and copies one rank's values to all: values of"
        " other stages are synchronized first",
        since=_HOROVOD,
    )
    for path in ("_make_broadcast_group_fn", "_make_inplace_broadcast_group_fn")
)
RESTORING = tuple(
    Patch(
        module="horovod.tensorflow.elastic",
        path=f"{state}._load_model",
        why="assigns saved values to variables, also to variables that a rank has freed",
        since=_HOROVOD,
    )
    for state in ("TensorFlowState", "TensorFlowKerasState")
)

VARIABLE_HANDLE = Patch(
    module="tensorflow.python.ops.resource_variable_ops",
    path="BaseResourceVariable._handle",
    why="every eager read and write of a variable takes it: values that only another rank has are"
    " read there first",
    since=_TENSORFLOW,
    adds=True,
)
VARIABLE_READ = Patch(
    module="tensorflow.python.ops.resource_variable_ops",
    path="BaseResourceVariable._read_variable_op",
    why="a read in another thread may find a value that a step has just freed, or of which it has"
    " kept a part: it reads again",
    since=_TENSORFLOW,
)
FUNCTION_CALL = Patch(
    module=f"{_EAGER}.polymorphic_function.atomic_function",
    path="AtomicFunction.call_flat",
    why=f"a function reads the variables that it has captured: as {VARIABLE_HANDLE.path}",
    since=_TENSORFLOW,
)
DATASET_FUNCTION = Patch(
    module="tensorflow.python.data.ops.structured_function",
    path="StructuredFunctionWrapper.__init__",
    why="functions of tf.data read the variables that they have captured at any time: these get"
    " their values after every step",
    since=_TENSORFLOW,
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
    OPTIMIZER_VARIABLE,
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
    *RESTORING, VARIABLE_HANDLE, VARIABLE_READ, FUNCTION_CALL, DATASET_FUNCTION,
)  # fmt: skip
