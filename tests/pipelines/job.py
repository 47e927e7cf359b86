"""Trains a pipeline whose ranks are threads of this process."""

import concurrent.futures
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tests.pipelines.models import Trained
from tests.pipelines.threads import Threads
from tf_libra.model.pipeline import PipelinePlan, PipelineStage
from tf_libra.pipelines.axes import Axes
from tf_libra.pipelines.cutting import Cut
from tf_libra.pipelines.executing import Execution, place_of
from tf_libra.pipelines.recording import Recorder
from tf_libra.pipelines.shares import Shares
from tf_libra.pipelines.step_graph import StepGraph
from tf_libra.planning.pipeline.pe import execution_orders


def fresh(make: Callable[[], Trained]) -> Trained:
    """A model that is the same every time, with the same names."""
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(7)
    trained = make()
    trained.optimizer.build(trained.variables)
    return trained


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
    returned: list[dict[str, Any]]


def train(
    make: Callable[[], Trained],
    starts: Sequence[int],
    replicas: Sequence[int],
    num_microbatches: int,
    batches: Sequence[tuple[Any, Any]],
) -> list[Rank]:
    """Trains on joint batches; what each rank has then."""
    num_ranks = sum(replicas)
    threads = Threads(num_ranks)
    ranks = []
    for rank in range(num_ranks):
        trained = fresh(make)
        recorder = Recorder(tf.function(trained.step))
        images, labels = batches[0]
        share = images.shape[0] // num_ranks
        whole = images.shape[0] // num_microbatches
        names = [one.name for one in traced(recorder, images, labels, whole).layers]
        plan = plan_of(names, starts, replicas, num_microbatches)
        stage, _ = place_of(plan, rank)
        size = Shares(plan, share).size_in(stage)
        graph = traced(recorder, images, labels, size)
        axes = Axes(graph, size, traced(recorder, images, labels, 2 * size), 2 * size)
        cut = Cut(graph, starts)
        execution = Execution(cut, plan, axes, share, threads.of(rank))
        ranks.append(Rank(trained, graph, cut, execution, []))

    def run(number: int) -> None:
        one = ranks[number]
        for images, labels in batches:
            own = slice(number * share, (number + 1) * share)
            flat = one.execution.step([images[own], labels[own]])
            packed = one.graph.recording.concrete.function_type.pack_output(flat)
            one.returned.append({name: np.array(value) for name, value in packed.items()})

    with concurrent.futures.ThreadPoolExecutor(num_ranks) as pool:
        for future in [pool.submit(run, number) for number in range(num_ranks)]:
            future.result()
    return ranks


def batches(count: int, size: int) -> list[tuple[Any, Any]]:
    generator = np.random.default_rng(0)
    return [
        (
            tf.constant(generator.normal(size=[size, 8, 8, 1]), tf.float32),
            tf.constant(generator.integers(0, 10, size), tf.int32),
        )
        for _ in range(count)
    ]
