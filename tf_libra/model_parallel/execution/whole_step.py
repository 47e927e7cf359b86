"""Execution of a step that one rank runs for all: as a whole, in one function of the joint batch.

No tensor leaves the function between forward, backward and update, so that a step takes as long as
in one process, plus the transfers of examples and results.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tf_libra.model_parallel.capture.horovod_reductions import is_sum_reduction
from tf_libra.model_parallel.execution.input_scatter import InputScatter
from tf_libra.model_parallel.execution.step_executor import TaskSpan
from tf_libra.model_parallel.execution.transport import Transport, broadcast_tensor
from tf_libra.model_parallel.partition.batch_sharding import BatchShards
from tf_libra.model_parallel.partition.layout import Layout
from tf_libra.model_parallel.partition.own_results import OwnResults
from tf_libra.model_parallel.partition.sized_traces import SizedPartition
from tf_libra.model_parallel.partition.subgraph import collect_closure


def check_outputs(step: str, outputs: Iterable[Any]) -> None:
    """Raises `ValueError` if a result, of which it gets the spec, cannot be sent to other ranks."""
    for tensor in outputs:
        is_number = tensor.dtype.is_floating or tensor.dtype.is_integer
        can_be_sent = is_number or tensor.dtype.is_complex or tensor.dtype == tf.bool
        if not can_be_sent or not tensor.shape.is_fully_defined():
            raise ValueError(
                f"{step}: the result {tensor.name} cannot be sent to the other"
                f" ranks: its dtype is {tensor.dtype.name} and its shape is {tensor.shape}; return"
                " numbers of a static shape"
            )


class WholeStepExecutor:
    """See `StepExecutor`; all variables belong to the only stage.

    Attributes:
        layout: a layout of one rank; see `Layout.on_one_rank`.
        stages: the stage, on the rank that computes.
        task_spans: the computation of the last step, on the rank that computes.
        reduction_span: None, since the gradients are those of the joint batch.
        update_span: no time, since it is part of the computation.
    """

    reduction_span: tuple[float, float] | None = None
    update_span: tuple[float, float] = (0.0, 0.0)

    def __init__(
        self,
        layout: Layout,
        sized: SizedPartition,
        examples_per_rank: int,
        transport: Transport,
        computing: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
        own_results: OwnResults | None = None,
    ) -> None:
        """Builds the function on the rank that computes.

        Args:
            layout: the layout.
            sized: the step, traced for the joint batch.
            examples_per_rank: number of examples that each rank passes.
            transport: transport to the other ranks.
            computing: returns a context for the computation of a step.
            own_results: computes the results of each rank's own examples; None: every rank gets
                those of the joint batch.

        Raises:
            ValueError: a result cannot be sent to the other ranks.
        """
        self.layout = layout
        self.stages = layout.rank_stages(transport.rank)
        self.task_spans: tuple[TaskSpan, ...] = ()
        self._transport = transport
        self._computing, self._own_results = computing, own_results
        self._graph = graph = sized.partition.graph
        self._root = layout.ranks[0][0]
        check_outputs(graph.recording.name, own_results.specs if own_results else graph.outputs)
        sinks = [*graph.microbatch_effects, *graph.update_effects]
        closure = collect_closure(graph, sinks, graph.outputs, lambda tensor, index: False)
        names = [graph.ops[index].name for index in sorted(closure.ops)]
        self._arguments = [name for name in graph.arguments if name in closure.arguments]
        axes = {
            name: sized.axes.batch_axis(f"{name}:0")
            for name in graph.arguments
            if sized.partition.tensor(f"{name}:0").shape.rank != 0
        }
        shards = BatchShards(layout, examples_per_rank)
        needs = {layout.ranks[0]: self._arguments}
        self._scatter = InputScatter(shards, needs, axes, graph.arguments, transport)
        self._run: Callable[[Sequence[Any]], list[Any]] | None = None
        self._captures: frozenset[str] = frozenset()
        if self.stages:
            outputs = [tensor.name for tensor in graph.outputs]
            if own_results is not None:
                outputs = list(own_results.inputs)
            factors = {
                name: layout.num_ranks if is_sum_reduction(graph.ops[graph.op_index[name]]) else 1
                for name in graph.gradients
            }
            inputs = [f"{name}:0" for name in self._arguments]
            self._run = sized.extractor.extract(names, inputs, outputs, reductions=factors)
            self._captures = sized.extractor.captures(names, outputs)

    @property
    def averaged_metrics(self) -> dict[str, tuple[str, ...]]:
        """See `StepExecutor`: none."""
        return {}

    @property
    def captures(self) -> frozenset[str]:
        """See `StepExecutor`."""
        return self._captures

    @property
    def variables(self) -> dict[str, int]:
        """See `StepExecutor`."""
        return dict.fromkeys(self._graph.captures.keys() - self._graph.rank_local, 0)

    def step(self, arguments: Sequence[Any]) -> list[Any]:
        """See `StepExecutor`."""
        began = time.perf_counter()
        inputs = self._scatter.scatter(dict(zip(self._graph.arguments, arguments, strict=True)))
        computed: list[Any] | None = None
        if self._run is not None:
            examples = inputs.get(self.layout.ranks[0], 0)
            start = time.perf_counter()
            with self._computing():
                computed = self._run([examples[name] for name in self._arguments])
            stop = time.perf_counter()
            self.task_spans = (TaskSpan("step", 0, start - began, stop - began),)
        if self._own_results is not None:
            results = self._scatter_results(self._own_results, computed)
        else:
            results = self._broadcast_results(computed)
        if not (results if self._own_results is None else self._own_results.specs):
            # Otherwise the other ranks would not wait, and send examples ever further ahead.
            done = tf.zeros([])
            self._broadcast(done, done.dtype, done.shape, "computed")
        return results

    def _broadcast_results(self, computed: list[Any] | None) -> list[Any]:
        """Returns the results for the joint batch, on every rank."""
        return [
            self._broadcast(value, tensor.dtype, tensor.shape, f"returned {number}")
            for number, (value, tensor) in enumerate(
                zip(computed or [None] * len(self._graph.outputs), self._graph.outputs, strict=True)
            )
        ]

    def _scatter_results(self, own: OwnResults, computed: list[Any] | None) -> list[Any]:
        """Returns the results for this rank's examples."""
        transport = self._transport
        if computed is None:
            received = [
                transport.receive(spec.dtype, spec.shape, self._root, f"result {number}")
                for number, spec in enumerate(own.specs)
            ]
            return own.finish(received)
        by_rank = [own.of_rank(computed, rank) for rank in range(self.layout.num_ranks)]
        for rank, results in enumerate(by_rank):
            if rank != self._root:
                for number, value in enumerate(results):
                    transport.send(value, rank, f"result {number}")
        return own.finish(by_rank[self._root])

    def _broadcast(self, value: Any, dtype: Any, shape: Any, name: str) -> Any:
        num_ranks = self.layout.num_ranks
        return broadcast_tensor(self._transport, value, self._root, num_ranks, dtype, shape, name)
