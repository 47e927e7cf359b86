"""Execution of a step that one rank runs for all: as a whole, in one function of the joint batch.

No gradient or activation leaves the function, so that a step takes as long as in one process, plus
the transfers of examples. The function sends the results of other ranks as soon as it has computed
them. So their scripts go on, and pass the next examples, while it computes gradients and updates.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from tf_libra.model_parallel.capture.horovod_reductions import is_sum_reduction
from tf_libra.model_parallel.execution.input_scatter import InputScatter, MicrobatchInputs
from tf_libra.model_parallel.execution.step_executor import TaskSpan
from tf_libra.model_parallel.execution.transport import Transport, broadcast_tensor
from tf_libra.model_parallel.partition.batch_sharding import BatchShards
from tf_libra.model_parallel.partition.guarded_calls import active_guard
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


class ResultSender:
    """Sends their results to the other ranks; an `Epilogue` of the function that computes them."""

    def __init__(self, transport: Transport, num_ranks: int, own: OwnResults | None) -> None:
        """Sends nothing yet.

        Args:
            transport: transport to the other ranks.
            num_ranks: number of ranks.
            own: computes the results of each rank's own examples; None: every rank gets all.
        """
        self._transport, self._num_ranks, self._own = transport, num_ranks, own

    @property
    def specs(self) -> list[Any]:
        """See `Epilogue`: none."""
        return []

    @property
    def exchanges(self) -> bool:
        """See `Epilogue`."""
        return True

    def __call__(self, outputs: list[Any], inputs: Sequence[Any] = ()) -> list[Any]:
        """Returns the results of this rank from those of the joint batch."""
        ranks = range(self._num_ranks)
        if self._own is None:
            by_rank = [outputs for _ in ranks]
        else:
            by_rank = [self._own.of_rank(outputs, rank) for rank in ranks]
        for rank, results in enumerate(by_rank):
            if rank != self._transport.rank:
                for number, value in enumerate(results):
                    self._transport.send(value, rank, f"result {number}")
        return by_rank[self._transport.rank]


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
        is_guarded: bool = False,
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
            is_guarded: whether the first steps are guarded (`guarded_calls`). The function of these
                sends no results: whether it has sent some before it fails would be unknown.

        Raises:
            ValueError: a result cannot be sent to the other ranks.
        """
        self.layout = layout
        self.stages = layout.rank_stages(transport.rank)
        self.task_spans: tuple[TaskSpan, ...] = ()
        self._transport = transport
        self._computing = computing
        self._graph = graph = sized.partition.graph
        self._root = layout.ranks[0][0]
        self._results: Sequence[Any] = own_results.specs if own_results else graph.outputs
        self._finish: Callable[[list[Any]], list[Any]] = own_results.finish if own_results else list
        check_outputs(graph.recording.name, self._results)
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
            self._extract = partial(
                sized.extractor.extract, names, inputs, outputs, reductions=factors
            )
            self._captures = sized.extractor.captures(names, outputs)
            self._send_results = ResultSender(transport, layout.num_ranks, own_results)
            self._functions: dict[bool, Callable[[Sequence[Any]], list[Any]]] = {}
            self._function(is_guarded)

    def _function(self, is_guarded: bool) -> Callable[[Sequence[Any]], list[Any]]:
        """Returns the function; unless it is guarded, it sends results."""
        if is_guarded not in self._functions:
            epilogue = None if is_guarded else self._send_results
            self._functions[is_guarded] = self._extract(epilogue=epilogue)
        return self._functions[is_guarded]

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
        if self.stages:
            results = self._compute(inputs, began)
        else:
            results = [
                self._transport.receive(result.dtype, result.shape, self._root, f"result {number}")
                for number, result in enumerate(self._results)
            ]
        if not self._results:
            # Otherwise the other ranks would not wait, and send examples ever further ahead.
            done = tf.zeros([])
            num_ranks, spec = self.layout.num_ranks, (done.dtype, done.shape)
            broadcast_tensor(self._transport, done, self._root, num_ranks, *spec, "computed")
        return self._finish(results)

    def _compute(self, inputs: MicrobatchInputs, began: float) -> list[Any]:
        """Runs the function, and returns what this rank's results are finished from."""
        examples = inputs.get(self.layout.ranks[0], 0)
        is_guarded = active_guard() is not None
        run = self._function(is_guarded)
        start = time.perf_counter()
        with self._computing():
            results = run([examples[name] for name in self._arguments])
        stop = time.perf_counter()
        self.task_spans = (TaskSpan("step", 0, start - began, stop - began),)
        return self._send_results(results) if is_guarded else results
