"""Trains a pipeline whose ranks are threads of this process."""

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

from tests.model_parallel.models import Trained
from tests.model_parallel.threads import Threads
from tf_libra.model_parallel.capture.step_graph import StepGraph
from tf_libra.model_parallel.capture.step_recorder import StepRecorder
from tf_libra.model_parallel.execution.gradient_reduction import Groups
from tf_libra.model_parallel.execution.stage_executor import StageExecutor
from tf_libra.model_parallel.execution.transport import Transport
from tf_libra.model_parallel.partition.batch_sharding import BatchShards
from tf_libra.model_parallel.partition.layout import Layout
from tf_libra.model_parallel.partition.sized_traces import Traced, Traces
from tf_libra.model_parallel.partition.stage_partition import StagePartition
from tf_libra.model_parallel.planning.gradient_buckets import in_production_order
from tf_libra.planning.burst import given_devices
from tf_libra.planning.pipeline.execution_order import execution_orders
from tf_libra.specs.burst import BurstPlan
from tf_libra.specs.pipeline import PipelinePlan, PipelineStage
from tf_libra.specs.scaling_profile import ScalingProfile


@dataclass(frozen=True)
class Made:
    """A model that tests use one after another, which takes less time than to build one for each.

    Attributes:
        trained: it.
        variables: all that were made for it, in order.
        values: theirs at first.
        recorder: of its step, which keeps its traces; where an update needs selections, the first
            test finds that out, and it goes on making them.
    """

    trained: Trained
    variables: Sequence[tf.Variable]
    values: Sequence[Any]
    recorder: StepRecorder

    def handles(self, other: "Made") -> dict[int, Any]:
        """Returns this model's handle for the id of each handle of another such model."""
        pairs = zip(other.variables, self.variables, strict=True)
        return {id(theirs.handle): own.handle for theirs, own in pairs}


def made(make: Callable[[], Trained], number: int) -> Made:
    """Returns the model of this number, reset to its initial values, also for earlier users."""
    one = _made(make, number)
    for variable, value in zip(one.variables, one.values, strict=True):
        variable.assign(value)
    return one


@functools.cache
def _made(make: Callable[[], Trained], number: int) -> Made:
    trained, variables = _created(make)
    values = [tf.identity(one) for one in variables]
    return Made(trained, variables, values, StepRecorder(tf.function(trained.step)))


def fresh(make: Callable[[], Trained]) -> Trained:
    """A model that is the same every time, with the same names."""
    return _created(make)[0]


def _created(make: Callable[[], Trained]) -> tuple[Trained, list[tf.Variable]]:
    """Such a model, and all variables that were made for it, in order."""
    tf.keras.backend.clear_session(free_memory=False)  # which would take longer than many models
    tf.keras.utils.set_random_seed(7)
    variables: list[tf.Variable] = []

    def create(following: Callable[..., tf.Variable], **how: Any) -> tf.Variable:
        variables.append(following(**how))
        return variables[-1]

    with tf.variable_creator_scope(create):
        trained = make()
        trained.optimizer.build(trained.variables)
    return trained, variables


@functools.cache
def trained_alone(
    make: Callable[[], Trained], num_steps: int, samples: int, num_microbatches: int
) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """Trains one process alone; the result is cached for any number of workers.

    Returns:
        The outputs of every step; and by number and name variables, state, optimizer's variables.
    """
    alone = made(make, -1).trained
    returned = [
        {name: value.numpy() for name, value in alone.accumulated(*step, num_microbatches).items()}
        for step in batches(num_steps, samples)
    ]
    values = {
        f"{number} {one.name}": tf.convert_to_tensor(one).numpy()
        for number, one in enumerate(alone.every_variable)
    }
    return returned, values


def traced(recorder: StepRecorder, images: Any, labels: Any, size: int) -> StepGraph:
    specs = [tf.TensorSpec([size, *one.shape[1:]], one.dtype) for one in (images, labels)]
    return StepGraph(recorder.record(specs, {}))


def plan_of(
    names: Sequence[str], starts: Sequence[int], replicas: Sequence[int], num_microbatches: int
) -> PipelinePlan:
    """Stages on consecutive ranks, in the order of SPP."""
    orders = execution_orders(len(starts), num_microbatches)
    stops = [*starts[1:], len(names)]
    stages, first = [], 0
    for start, stop, count, order in zip(starts, stops, replicas, orders, strict=True):
        stages.append(PipelineStage(start, stop, tuple(range(first, first + count)), order))
        first += count
    return PipelinePlan(tuple(stages), tuple(names), first, "spp")


@dataclass
class Rank:
    trained: Trained
    graph: StepGraph
    cut: StagePartition
    execution: StageExecutor
    batches: Sequence[tuple[Any, Any]]
    returned: list[dict[str, Any]]


def train(
    make: Callable[[], Trained],
    starts: Sequence[int],
    replicas: Sequence[int],
    num_microbatches: int,
    batches: Sequence[tuple[Any, Any]],
    num_groups: int = 0,
) -> list[Rank]:
    """Trains a pipeline on joint batches; what each rank has then.

    With `num_groups` stages with replicas all-reduce so many groups within their last backward.
    """

    def layout(names: Sequence[str]) -> Layout:
        return Layout.of_pipeline(plan_of(names, starts, replicas, num_microbatches))

    return train_laid_out(make, layout, sum(replicas), num_microbatches, batches, num_groups)


def train_laid_out(
    make: Callable[[], Trained],
    layout_of: Callable[[Sequence[str]], Layout],
    num_ranks: int,
    num_microbatches: int,
    batches: Sequence[tuple[Any, Any]],
    num_groups: int = 0,
    has_branches: bool = False,
) -> list[Rank]:
    """Trains on joint batches, with the layout for layers of these names.

    Tracing takes longest, so the step is traced once and not by every rank, as processes have to,
    nor by every test: the ranks have the same trace, with variables of their own.
    """
    how = (layout_of, num_ranks, num_microbatches, batches, num_groups, has_branches)
    models = [made(make, number) for number in range(num_ranks)]
    traces, layout = _planned(models[0].recorder, *how)
    return run_together(models, traces, layout, batches)


def run_together(
    models: Sequence[Made], traces: Traces, layout: Layout, batches: Sequence[tuple[Any, Any]]
) -> list[Rank]:
    """Runs the ranks' steps under a trace of the first model; returns each rank afterwards."""
    threads = Threads(len(models))
    ranks = [
        _rank(one.trained, traces, layout, threads.of(number), batches, one.handles(models[0]))
        for number, one in enumerate(models)
    ]
    with concurrent.futures.ThreadPoolExecutor(len(ranks)) as pool:
        for future in [pool.submit(run, one, number) for number, one in enumerate(ranks)]:
            future.result()
    return ranks


def rank_of(
    make: Callable[[], Trained],
    transport: Transport,
    layout_of: Callable[[Sequence[str]], Layout],
    num_ranks: int,
    num_microbatches: int,
    batches: Sequence[tuple[Any, Any]],
    num_groups: int = 0,
) -> Rank:
    """Returns one rank, a process of its own, before the first step; see `train_laid_out`."""
    trained = fresh(make)
    how = (layout_of, num_ranks, num_microbatches, batches, num_groups)
    recorder = StepRecorder(tf.function(trained.step))
    return _rank(trained, *_planned(recorder, *how), transport, batches)


def _planned(
    recorder: StepRecorder,
    layout_of: Callable[[Sequence[str]], Layout],
    num_ranks: int,
    num_microbatches: int,
    batches: Sequence[tuple[Any, Any]],
    num_groups: int = 0,
    has_branches: bool = False,
) -> tuple[Traces, Layout]:
    """The traces of a model's step, and its layout."""
    images, labels = batches[0]
    share = images.shape[0] // num_ranks
    given = ((images, labels), {})
    size = images.shape[0] // num_microbatches
    options = {"num_ranks": num_ranks, "has_branches": has_branches}
    traces = Traces(recorder, given, share, size, **options)
    layout = layout_of([one.name for one in traces.whole.layers])
    if num_groups:
        cut = traces.cut(layout.starts)
        groups = [_groups(cut, stage, num_groups) for stage in range(layout.num_stages)]
        has_replicas = [len(ranks) > 1 for ranks in layout.ranks]
        kept = zip(groups, has_replicas, strict=True)
        layout = dataclasses.replace(layout, groups=tuple(g if has else () for g, has in kept))
    return traces, layout


def _rank(
    trained: Trained,
    traces: Traces,
    layout: Layout,
    transport: Transport,
    batches: Sequence[tuple[Any, Any]],
    handles: Mapping[int, Any] | None = None,
) -> Rank:
    """One rank; where another has traced, `handles` are by the id of each of its own the rank's."""
    shares = BatchShards(layout, traces.samples_per_rank)
    sizes = {shares.size_in(stage) for stage in layout.stages_of(transport.rank)} or {traces.size}
    traced = {size: traces.traced(size, layout.starts) for size in sizes}
    if handles is not None:
        traced = {size: _with_handles(one, handles) for size, one in traced.items()}
    execution = StageExecutor(layout, traced, traces.samples_per_rank, transport)
    cut = next(iter(traced.values())).cut
    return Rank(trained, cut.graph, cut, execution, batches, [])


def _with_handles(traced: Traced, handles: Mapping[int, Any]) -> Traced:
    """The same trace of other variables."""

    def other(captured: Any) -> Any:
        return handles[id(captured)] if captured.dtype == tf.resource else captured

    cut, extraction = copy.copy(traced.cut), copy.copy(traced.extraction)
    cut.graph = graph = copy.copy(cut.graph)
    graph.captures = {name: other(one) for name, one in graph.captures.items()}
    # What the trace says of its variables is found by their own handles as before.
    graph._placeholders = graph._placeholders | {
        id(one): name for name, one in graph.captures.items()
    }
    extraction._captures = {name: other(one) for name, one in extraction._captures.items()}
    return Traced(cut, traced.axes, extraction)


def _groups(cut: StagePartition, stage: int, count: int) -> Groups:
    parts = np.array_split(in_production_order(cut, stage), count)
    return tuple(tuple(map(str, some)) for some in parts if len(some))


def run(one: Rank, number: int) -> None:
    """The steps of one rank."""
    num_ranks = one.execution.layout.num_ranks
    for images, labels in one.batches:
        share = images.shape[0] // num_ranks
        own = slice(number * share, (number + 1) * share)
        flat = one.execution.step([images[own], labels[own]])
        packed = one.graph.recording.concrete.function_type.pack_output(flat)
        one.returned.append({name: np.array(value) for name, value in packed.items()})


def names_of(make: Callable[[], Trained]) -> list[str]:
    """Names of a model's layers, as bursts have them."""
    images, labels = batches(1, 4)[0]
    given = ((images, labels), {})
    traces = Traces(StepRecorder(tf.function(fresh(make).step)), given, 4, 4, has_branches=True)
    return [one.name for one in traces.whole.layers]


def burst_plan(names: Sequence[str], num_devices: Sequence[int], cluster: int) -> BurstPlan:
    """Layers on these numbers of devices, in turn."""
    counts = sorted({1, *num_devices, cluster})
    ones = np.ones([len(names), len(counts)])
    moves = np.zeros([len(names) - 1, len(counts), len(counts)])
    scaling = ScalingProfile.chain(counts, ones, 0 * ones, moves, names)
    turn = itertools.cycle(num_devices)
    return given_devices(scaling, [next(turn) for _ in names])


def batches(count: int, size: int) -> list[tuple[Any, Any]]:
    generator = np.random.default_rng(0)
    return [
        (
            tf.constant(generator.normal(size=[size, 8, 8, 1]), tf.float32),
            tf.constant(generator.integers(0, 10, size), tf.int32),
        )
        for _ in range(count)
    ]
