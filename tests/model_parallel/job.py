"""Model-parallel training with ranks that are threads of this process."""

import collections
import concurrent.futures
import copy
import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tests.model_parallel.threads import Threads
from tests.model_parallel.trained_model import Trained
from tf_libra.model_parallel.capture.step_graph import StepGraph
from tf_libra.model_parallel.capture.step_recorder import StepRecorder
from tf_libra.model_parallel.execution.executors import make_executor
from tf_libra.model_parallel.execution.gradient_reduction import Groups
from tf_libra.model_parallel.execution.step_executor import StepExecutor
from tf_libra.model_parallel.execution.transport import Transport
from tf_libra.model_parallel.partition.batch_sharding import BatchShards
from tf_libra.model_parallel.partition.layout import Layout
from tf_libra.model_parallel.partition.own_results import (
    OwnResults,
    make_own_results,
    share_own_results,
)
from tf_libra.model_parallel.partition.sized_traces import SizedPartition, SizedTraces
from tf_libra.model_parallel.partition.stage_partition import StagePartition
from tf_libra.model_parallel.planning.burst import with_device_counts
from tf_libra.model_parallel.planning.pipeline.spp import execution_orders
from tf_libra.model_parallel.runtime.gradient_buckets import in_production_order
from tf_libra.specs.burst import BurstPlan
from tf_libra.specs.pipeline import PipelinePlan, PipelineStage
from tf_libra.specs.scaling_profile import ScalingProfile


@dataclass(frozen=True)
class CachedModel:
    """A model that several tests use one after another, to save the time of building it.

    Attributes:
        trained: the model with its step.
        variables: all its variables, in order of creation.
        values: their initial values.
        recorder: recorder of the step, with cached traces. Branch selection, once enabled for an
            update, stays enabled.
    """

    trained: Trained
    variables: Sequence[tf.Variable]
    values: Sequence[Any]
    recorder: StepRecorder

    def handles(self, other: "CachedModel") -> dict[int, Any]:
        """Returns this model's handle by `id` of the corresponding handle of another model."""
        pairs = zip(other.variables, self.variables, strict=True)
        return {id(theirs.handle): own.handle for theirs, own in pairs}


def cached_model(make: Callable[[], Trained], number: int) -> CachedModel:
    """Returns the model of this number, reset to its initial values."""
    model = _cached_model(make, number)
    for variable, value in zip(model.variables, model.values, strict=True):
        variable.assign(value)
    return model


@functools.cache
def _cached_model(make: Callable[[], Trained], number: int) -> CachedModel:
    trained, variables = _build_model(make)
    values = [tf.identity(variable) for variable in variables]
    return CachedModel(trained, variables, values, StepRecorder(tf.function(trained.step)))


def build_model(make: Callable[[], Trained]) -> Trained:
    """Returns a new model, with the same names and initial values every time."""
    return _build_model(make)[0]


def _build_model(make: Callable[[], Trained]) -> tuple[Trained, list[tf.Variable]]:
    """Returns a new model, and all its variables in order of creation."""
    tf.keras.backend.clear_session(free_memory=False)  # freeing takes longer than many models
    tf.keras.utils.set_random_seed(7)
    variables: list[tf.Variable] = []

    def create(next_creator: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
        variables.append(next_creator(**kwargs))
        return variables[-1]

    with tf.variable_creator_scope(create):
        trained = make()
        trained.optimizer.build(trained.variables)
    return trained, variables


# By model, batch size and number of microbatches: by number of steps, results and all variables.
_ENDS: dict[Any, dict[int, tuple[list[Any], Sequence[Any]]]] = collections.defaultdict(dict)


@functools.cache
def train_alone(
    make: Callable[[], Trained], num_steps: int, batch_size: int, num_microbatches: int
) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """Trains in one process with accumulated microbatches; the result is cached.

    Training goes on from the longest earlier one of the same kind.

    Returns:
        The results of every step; and the final values of all variables by number and name.
    """
    model = cached_model(make, -1)
    ends = _ENDS[make, batch_size, num_microbatches]
    num_done = max((steps for steps in ends if steps < num_steps), default=0)
    results, values = ends.get(num_done, ([], model.values))
    for variable, value in zip(model.variables, values, strict=True):
        variable.assign(value)
    alone, results = model.trained, [*results]
    for step in batches(num_steps, batch_size)[num_done:]:
        result = alone.accumulated(*step, num_microbatches)
        results.append(tf.nest.map_structure(lambda value: value.numpy(), result))
    ends[num_steps] = results, [tf.identity(variable) for variable in model.variables]
    return results, {
        f"{number} {variable.name}": tf.convert_to_tensor(variable).numpy()
        for number, variable in enumerate(alone.every_variable)
    }


def metrics_alone(
    make: Callable[[], Trained], num_steps: int, batch_size: int, rank: int, num_ranks: int
) -> tuple[list[Any], list[Any]]:
    """Returns results by step, and variables, of a metric of one rank's examples alone."""
    returned, _ = train_alone(make, num_steps, batch_size, 1)
    metric = cached_model(make, -1).trained.metric
    size = batch_size // num_ranks
    share = slice(rank * size, (rank + 1) * size)
    results = []
    for (_, labels), step in zip(batches(num_steps, batch_size), returned, strict=True):
        metric.update_state(labels[share], step["logits"][share])
        results.append(tf.convert_to_tensor(metric.result()).numpy())
    variables = getattr(metric, "variables", ())
    return results, [tf.convert_to_tensor(variable).numpy() for variable in variables]


def trace(recorder: StepRecorder, images: Any, labels: Any, size: int) -> StepGraph:
    """Returns the step, traced for a batch size."""
    specs = [tf.TensorSpec([size, *each.shape[1:]], each.dtype) for each in (images, labels)]
    return StepGraph(recorder.record(specs, {}))


def make_plan(
    names: Sequence[str], starts: Sequence[int], replicas: Sequence[int], num_microbatches: int
) -> PipelinePlan:
    """Returns a pipeline plan with stages on consecutive ranks, in SPP's execution order."""
    orders = execution_orders(len(starts), num_microbatches)
    stops = [*starts[1:], len(names)]
    stages, first = [], 0
    for start, stop, count, order in zip(starts, stops, replicas, orders, strict=True):
        stages.append(PipelineStage(start, stop, tuple(range(first, first + count)), order))
        first += count
    return PipelinePlan(tuple(stages), tuple(names), first, "spp")


@dataclass
class Rank:
    """One rank of a model-parallel training.

    Attributes:
        trained: the rank's model.
        graph: the trace with the rank's variables.
        partition: the step in stages.
        executor: executor of the rank.
        batches: joint batches to train on.
        results: results of the steps so far.
    """

    trained: Trained
    graph: StepGraph
    partition: StagePartition
    executor: StepExecutor
    batches: Sequence[tuple[Any, Any]]
    results: list[dict[str, Any]]


def train(
    make: Callable[[], Trained],
    starts: Sequence[int],
    replicas: Sequence[int],
    num_microbatches: int,
    batches: Sequence[tuple[Any, Any]],
    num_groups: int = 0,
) -> list[Rank]:
    """Trains a pipeline on joint batches and returns all ranks.

    Stages with replicas all-reduce `num_groups` groups within their last backward computation.
    """

    def layout(names: Sequence[str]) -> Layout:
        return Layout.from_pipeline_plan(make_plan(names, starts, replicas, num_microbatches))

    return train_with_layout(make, layout, sum(replicas), num_microbatches, batches, num_groups)


def train_with_layout(
    make: Callable[[], Trained],
    make_layout: Callable[[Sequence[str]], Layout],
    num_ranks: int,
    num_microbatches: int,
    batches: Sequence[tuple[Any, Any]],
    num_groups: int = 0,
    has_branches: bool = False,
    has_own_results: bool = False,
) -> list[Rank]:
    """Trains on joint batches and returns all ranks.

    Tracing takes longest, so the step is traced once, and ranks share the trace, each with its own
    variables.

    Args:
        make: returns a new model.
        make_layout: returns the layout for the names of layers.
        num_ranks: number of ranks.
        num_microbatches: number of microbatches.
        batches: joint batches.
        num_groups: see `train`.
        has_branches: see `StepGraph`.
        has_own_results: whether ranks get the results of their own examples.
    """
    options = (make_layout, num_ranks, num_microbatches, batches, num_groups, has_branches)
    models = [cached_model(make, number) for number in range(num_ranks)]
    traces, layout = _trace_and_plan(models[0].recorder, *options)
    own_results: list[OwnResults] = []
    if has_own_results:
        own = traces.sized_partition(traces.examples_per_rank, (0,))
        handles = [model.handles(models[0]) for model in models]
        own_results = [make_own_results(_with_handles(own, each)) for each in handles]
        share_own_results(traces)
    return run_together(models, traces, layout, batches, own_results)


def run_together(
    models: Sequence[CachedModel],
    traces: SizedTraces,
    layout: Layout,
    batches: Sequence[tuple[Any, Any]],
    own_results: Sequence[OwnResults] = (),
) -> list[Rank]:
    """Runs the steps of all ranks with traces of the first model, and returns the ranks."""
    threads = Threads(len(models))
    ranks = [
        _make_rank(
            model.trained,
            traces,
            layout,
            threads.transport(number),
            batches,
            model.handles(models[0]),
            own_results[number] if own_results else None,
        )
        for number, model in enumerate(models)
    ]
    with concurrent.futures.ThreadPoolExecutor(len(ranks)) as pool:
        for future in [pool.submit(run, rank, number) for number, rank in enumerate(ranks)]:
            future.result()
    return ranks


def make_rank(
    make: Callable[[], Trained],
    transport: Transport,
    make_layout: Callable[[Sequence[str]], Layout],
    num_ranks: int,
    num_microbatches: int,
    batches: Sequence[tuple[Any, Any]],
    num_groups: int = 0,
) -> Rank:
    """Returns the rank of this process before its first step; see `train_with_layout`."""
    trained = build_model(make)
    options = (make_layout, num_ranks, num_microbatches, batches, num_groups)
    recorder = StepRecorder(tf.function(trained.step))
    return _make_rank(trained, *_trace_and_plan(recorder, *options), transport, batches)


def _trace_and_plan(
    recorder: StepRecorder,
    make_layout: Callable[[Sequence[str]], Layout],
    num_ranks: int,
    num_microbatches: int,
    batches: Sequence[tuple[Any, Any]],
    num_groups: int = 0,
    has_branches: bool = False,
) -> tuple[SizedTraces, Layout]:
    """Returns the traces of a model's step, and its layout."""
    images, labels = batches[0]
    traces = SizedTraces(
        recorder,
        ((images, labels), {}),
        images.shape[0] // num_ranks,
        images.shape[0] // num_microbatches,
        num_ranks=num_ranks,
        has_branches=has_branches,
    )
    layout = make_layout([layer.name for layer in traces.microbatch_graph.layers])
    if num_groups:
        partition = traces.partition(layout.starts)
        groups = [
            _split_gradients(partition, stage, num_groups) if len(ranks) > 1 else ()
            for stage, ranks in enumerate(layout.ranks)
        ]
        layout = dataclasses.replace(layout, groups=tuple(groups))
    return traces, layout


def _make_rank(
    trained: Trained,
    traces: SizedTraces,
    layout: Layout,
    transport: Transport,
    batches: Sequence[tuple[Any, Any]],
    handles: Mapping[int, Any] | None = None,
    own_results: OwnResults | None = None,
) -> Rank:
    """Returns a rank; `handles` has its handles by `id` of those in the traces, if they differ."""
    shards = BatchShards(layout, traces.examples_per_rank)
    sizes = {shards.examples_per_replica(stage) for stage in layout.rank_stages(transport.rank)}
    partitions = {
        size: traces.sized_partition(size, layout.starts)
        for size in sizes or {traces.microbatch_size}
    }
    if handles is not None:
        partitions = {size: _with_handles(each, handles) for size, each in partitions.items()}
    executor = make_executor(
        layout, partitions, traces.examples_per_rank, transport, own_results=own_results
    )
    partition = next(iter(partitions.values())).partition
    return Rank(trained, partition.graph, partition, executor, batches, [])


def _with_handles(sized: SizedPartition, handles: Mapping[int, Any]) -> SizedPartition:
    """Returns the same trace with other variables."""

    def replace(captured: Any) -> Any:
        return handles[id(captured)] if captured.dtype == tf.resource else captured

    partition, extractor = copy.copy(sized.partition), copy.copy(sized.extractor)
    partition.graph = graph = copy.copy(partition.graph)
    graph.captures = {name: replace(tensor) for name, tensor in graph.captures.items()}
    # The trace finds its own variables by their handles as before.
    graph._placeholders = graph._placeholders | {
        id(tensor): name for name, tensor in graph.captures.items()
    }
    extractor._captures = {name: replace(tensor) for name, tensor in extractor._captures.items()}
    return SizedPartition(partition, sized.axes, extractor)


def _split_gradients(partition: StagePartition, stage: int, count: int) -> Groups:
    groups = np.array_split(in_production_order(partition, stage), count)
    return tuple(tuple(map(str, group)) for group in groups if len(group))


def run(rank: Rank, number: int) -> None:
    """Runs the steps of one rank."""
    num_ranks = rank.executor.layout.num_ranks
    for images, labels in rank.batches:
        size = images.shape[0] // num_ranks
        own = slice(number * size, (number + 1) * size)
        flat = rank.executor.step([images[own], labels[own]])
        packed = rank.graph.recording.concrete.function_type.pack_output(flat)
        rank.results.append({name: np.array(value) for name, value in packed.items()})


def burst_layer_names(make: Callable[[], Trained]) -> list[str]:
    """Returns the names of a model's layers, if branches count."""
    recorder = StepRecorder(tf.function(build_model(make).step))
    traces = SizedTraces(recorder, (batches(1, 4)[0], {}), 4, 4, has_branches=True)
    return [layer.name for layer in traces.microbatch_graph.layers]


def make_burst_plan(names: Sequence[str], num_devices: Sequence[int], cluster: int) -> BurstPlan:
    """Returns a plan with layers on these numbers of devices, cyclically."""
    counts = sorted({1, *num_devices, cluster})
    ones, moves = np.ones([len(names), len(counts)]), np.zeros([len(names) - 1] + 2 * [len(counts)])
    scaling = ScalingProfile.chain(counts, ones, 0 * ones, moves, names)
    chosen = itertools.islice(itertools.cycle(num_devices), len(names))
    return with_device_counts(scaling, list(chosen))


def batches(count: int, size: int) -> list[tuple[Any, Any]]:
    """Returns batches of random images and labels, the same every time."""
    generator = np.random.default_rng(0)
    return [
        (
            tf.constant(generator.normal(size=[size, 8, 8, 1]), tf.float32),
            tf.constant(generator.integers(0, 10, size), tf.int32),
        )
        for _ in range(count)
    ]
