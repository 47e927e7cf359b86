"""Trains a pipeline whose ranks are threads of this process."""

import concurrent.futures
import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tests.pipelines.models import Trained
from tests.pipelines.threads import Threads
from tf_libra.model.burst import BurstPlan
from tf_libra.model.pipeline import PipelinePlan, PipelineStage
from tf_libra.model.scaling import ScalingProfile
from tf_libra.pipelines.cutting import Cut
from tf_libra.pipelines.executing import Execution
from tf_libra.pipelines.layout import Layout
from tf_libra.pipelines.recording import Recorder
from tf_libra.pipelines.reducing import Groups, in_production_order
from tf_libra.pipelines.shares import Shares
from tf_libra.pipelines.step_graph import StepGraph
from tf_libra.pipelines.traces import Traces
from tf_libra.pipelines.transport import Transport
from tf_libra.planning.burst import given_devices
from tf_libra.planning.pipeline.pe import execution_orders


def fresh(make: Callable[[], Trained]) -> Trained:
    """A model that is the same every time, with the same names."""
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(7)
    trained = make()
    trained.optimizer.build(trained.variables)
    return trained


@functools.cache
def trained_alone(
    make: Callable[[], Trained], num_steps: int, samples: int, num_microbatches: int
) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """What one process returns and has then, however many workers it is compared with.

    Returns:
        What every step returns; and by number and name variables, state and optimizer's variables.
    """
    alone = fresh(make)
    returned = [
        {name: value.numpy() for name, value in alone.accumulated(*step, num_microbatches).items()}
        for step in batches(num_steps, samples)
    ]
    values = {
        f"{number} {one.name}": tf.convert_to_tensor(one).numpy()
        for number, one in enumerate(alone.every_variable)
    }
    return returned, values


def traced(recorder: Recorder, images: Any, labels: Any, size: int) -> StepGraph:
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
    cut: Cut
    execution: Execution
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
    """Trains on joint batches, with the layout for layers of these names."""
    threads = Threads(num_ranks)
    how = (layout_of, num_ranks, num_microbatches, batches, num_groups, has_branches)
    ranks = [rank_of(make, threads.of(number), *how) for number in range(num_ranks)]
    with concurrent.futures.ThreadPoolExecutor(num_ranks) as pool:
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
    has_branches: bool = False,
) -> Rank:
    """What one rank of `train_laid_out` has before the first step."""
    trained = fresh(make)
    images, labels = batches[0]
    share = images.shape[0] // num_ranks
    recorder = Recorder(tf.function(trained.step))
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
    shares = Shares(layout, share)
    sizes = {shares.size_in(stage) for stage in layout.stages_of(transport.rank)} or {traces.size}
    traced = {size: traces.traced(size, layout.starts) for size in sizes}
    execution = Execution(layout, traced, share, transport)
    cut = next(iter(traced.values())).cut
    return Rank(trained, cut.graph, cut, execution, batches, [])


def _groups(cut: Cut, stage: int, count: int) -> Groups:
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
    traces = Traces(Recorder(tf.function(fresh(make).step)), given, 4, 4, has_branches=True)
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
