"""Execution of one rank's part of a step: its stages' tasks, then its part of the update."""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_libra.model_parallel.capture.horovod_reductions import is_sum_reduction
from tf_libra.model_parallel.execution.gradient_reduction import fused_all_reduce, tensor_key
from tf_libra.model_parallel.execution.input_scatter import InputScatter, MicrobatchInputs, Values
from tf_libra.model_parallel.execution.output_gather import OutputGather
from tf_libra.model_parallel.execution.stage_tasks import (
    StageComputation,
    StageComputationBuilder,
    SubgraphFunction,
    send_tensors,
    slice_for_peer,
    sum_key,
    transfer_name,
)
from tf_libra.model_parallel.execution.step_executor import TaskSpan
from tf_libra.model_parallel.execution.step_function import StepClock, StepFunction
from tf_libra.model_parallel.execution.transport import Transport, barrier, broadcast_tensor
from tf_libra.model_parallel.partition.batch_sharding import BatchShards
from tf_libra.model_parallel.partition.guarded_calls import active_guard
from tf_libra.model_parallel.partition.layout import Layout, StageTask
from tf_libra.model_parallel.partition.own_results import OwnResults
from tf_libra.model_parallel.partition.resharding import Resharding, check_resharding, concat
from tf_libra.model_parallel.partition.sized_traces import SizedPartition
from tf_libra.model_parallel.partition.update_phase import UpdatePhase

# Kinds of spans that are no tasks.
_OTHER_SPANS = ("all_reduce", "update")


class StageExecutor:
    """See `StepExecutor`; runs the stages of this rank, task by task."""

    def __init__(
        self,
        layout: Layout,
        partitions: Mapping[int, SizedPartition],
        examples_per_rank: int,
        transport: Transport,
        computing: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
        own_results: OwnResults | None = None,
    ) -> None:
        """Builds the functions of the rank.

        Args:
            layout: the layout.
            partitions: the step in the layout's stages, by batch size of its trace. It needs all
                sizes that this rank computes in any stage, and at least one.
            examples_per_rank: number of examples that each rank passes.
            transport: transport to the other ranks.
            computing: returns a context for the computation of a step.
            own_results: computes the results of this rank's examples, from what the step returns;
                None: every rank gets the results for the joint batch.

        Raises:
            ValueError: the layout cannot be executed for this step or batch size.
        """
        self.layout = layout
        self._transport, self._computing = transport, computing
        self._own_results = own_results
        self._shards = BatchShards(layout, examples_per_rank)
        self.stages = layout.rank_stages(transport.rank)
        self._groups = [group for group in layout.replica_groups if transport.rank in group]
        sized = next(iter(partitions.values()))  # for what all traces have in common
        self._partition = partition = sized.partition
        if partition.graph.recording.has_rows:
            raise ValueError(
                f"{partition.graph.recording.name}: gradients are sparse, and stages need dense"
                " ones: set sparse_as_dense=True"
            )
        self._update = UpdatePhase(partition)
        self._order = layout.orders[transport.rank]
        for each in partitions.values():
            check_resharding(each.partition, layout, each.axes)
        num_examples = examples_per_rank * layout.num_ranks
        returns_own = own_results is not None
        self._output_gather = OutputGather(layout, sized, num_examples, transport, returns_own)
        kinds = dict.fromkeys(task.kind for task in self._order)
        self._last_kind = "backward" if "backward" in kinds else "forward"
        builder = StageComputationBuilder(self._shards, self._output_gather.names, transport)
        self._computations = {
            (kind, stage): builder.build(
                partitions[self._shards.examples_per_replica(stage)], kind, stage
            )
            for stage in self.stages
            for kind in kinds
        }
        # Reductions that the backward computation all-reduces; the others follow after it.
        self._grouped_reductions = {
            name for stage in self.stages for group in layout.stage_groups(stage) for name in group
        }
        self._update_functions = [
            SubgraphFunction.build(sized.extractor, self._update.subgraph(self.stages, round_index))
            for round_index in range(self._update.num_rounds)
        ]
        self._input_scatter = self._build_input_scatter(sized)
        # Gradients that the step sums over ranks, as Horovod would, instead of averaging.
        graph = partition.graph
        self._summed_gradients = [
            f"{name}:0"
            for stage in self.stages
            for name in partition.reductions[stage]
            if is_sum_reduction(graph.ops[graph.op_index[name]])
        ]
        self._group_reductions = {
            group: [
                name
                for stage, ranks in enumerate(layout.ranks)
                if ranks == group
                for name in partition.reductions[stage]
            ]
            for group in self._groups
        }
        # Tensors from one stage of this rank to another, by tensor, target and microbatch.
        self._local_tensors: dict[tuple[str, int, int], Any] = {}
        # Functions that wait for started receives, by task, tensor and rank.
        self._pending: dict[tuple[StageTask, str, int], Callable[[], Any]] = {}
        self._functions: tuple[Callable[[], Any], StepFunction] | None = None
        self._has_gpu = bool(tf.config.list_logical_devices("GPU"))
        self.task_spans: tuple[TaskSpan, ...] = ()
        self.reduction_span: tuple[float, float] | None = None
        self.update_span = (0.0, 0.0)

    def _build_input_scatter(self, sized: SizedPartition) -> InputScatter:
        partition, layout = self._partition, self.layout
        arguments = partition.graph.arguments
        needs: dict[tuple[int, ...], set[str]] = {group: set() for group in layout.replica_groups}
        for stage, ranks in enumerate(layout.ranks):
            for phase in (partition.forward_phase(stage), partition.backward_phase(stage)):
                needs[ranks].update(partition.subgraphs[phase].arguments)
        axes = {
            name: sized.axes.batch_axis(f"{name}:0")
            for name in arguments
            if partition.tensor(f"{name}:0").shape.rank != 0
        }
        return InputScatter(self._shards, needs, axes, arguments, self._transport)

    @property
    def averaged_metrics(self) -> dict[str, tuple[str, ...]]:
        """See `OutputGather`."""
        return self._output_gather.averaged_metrics

    @property
    def captures(self) -> frozenset[str]:
        """Placeholders of the captured tensors, such as variables, that this rank uses."""
        functions = [
            *(
                function
                for computation in self._computations.values()
                for function in computation.functions.values()
            ),
            *self._update_functions,
        ]
        return frozenset().union(*(function.captures for function in functions))

    @property
    def variables(self) -> dict[str, int]:
        """Stage of each variable, by placeholder, without variables that every rank updates."""
        return self._update.variables

    def step(self, arguments: Sequence[Any]) -> list[Any]:
        """Runs a step.

        Args:
            arguments: the tensors that this rank passes, in the order of the trace's inputs.

        Returns:
            The step's results, as a flat list.
        """
        begin, run = self._begin, self._run
        if self._can_be_function:
            if self._functions is None:
                as_function = tf.function(self._begin, autograph=False).get_concrete_function()
                self._functions = (as_function, StepFunction(self._run, arguments))
            begin, run = self._functions
        began = time.time()
        begin()
        with self._computing():
            results, spans = run(arguments, began)
        self._store_spans(spans)
        return results

    @property
    def _can_be_function(self) -> bool:
        """True if the step may run as one function.

        A guard replaces the results of single computations, for which Python calls each of them. On
        GPUs, functions of whole steps have not been tried.
        """
        return self._transport.waits_in_functions and active_guard() is None and not self._has_gpu

    def _begin(self) -> list[Any]:
        """Waits until all ranks take part in the step.

        Until then, they may read variables as they are after the step before.
        """
        return barrier(self._transport, self.layout.num_ranks, "begin")

    def _store_spans(self, spans: Sequence[TaskSpan]) -> None:
        others = {
            span.kind: (span.start_seconds, span.stop_seconds)
            for span in spans
            if span.kind in _OTHER_SPANS
        }
        self.task_spans = tuple(span for span in spans if span.kind not in _OTHER_SPANS)
        self.reduction_span, self.update_span = others.get("all_reduce"), others["update"]

    def _run(self, arguments: Sequence[Any], began: float) -> tuple[list[Any], list[TaskSpan]]:
        """Runs the step after all ranks have begun it, or adds it to a function; see `step`."""
        named_arguments = dict(zip(self._partition.graph.arguments, arguments, strict=True))
        with contextlib.ExitStack() as parts:
            clock = StepClock(began, parts)
            self._start_receives(self._order[:1])
            inputs = self._input_scatter.scatter(named_arguments)
            results, spans = self._compute(clock, named_arguments, inputs)
        if self._own_results is not None:
            return self._own_results.of_own(named_arguments, results), spans
        return [results[tensor.name] for tensor in self._partition.graph.outputs], spans

    def _compute(
        self, clock: StepClock, arguments: Values, inputs: MicrobatchInputs
    ) -> tuple[Values, list[TaskSpan]]:
        """Runs the tasks of this rank and the update.

        Args:
            clock: clock of the step.
            arguments: the arguments that this rank passes.
            inputs: the arguments that it computes with.

        Returns:
            The step's results by name, and the spans of all computations.
        """
        # Tensors of unfinished microbatches, by stage and microbatch.
        live: dict[tuple[int, int], Values] = {}
        outputs: list[Values] = [{} for _ in range(self.layout.num_microbatches)]
        sums: Values = {}
        # Tensors of all microbatches for deferred gradients, by stage.
        stored: dict[int, Values] = {}
        spans: list[TaskSpan] = []
        reductions = self._partition.reductions
        for index, task in enumerate(self._order):
            kind, stage, microbatch = task
            computation = self._computations[kind, stage]
            values = live.setdefault((stage, microbatch), {})
            self._receive(computation, task, values)
            # The inputs of the next task arrive while this one computes.
            self._start_receives(self._order[index + 1 : index + 2])
            examples = inputs.get(self.layout.ranks[stage], microbatch)
            start = clock.read()
            values |= computation.functions[microbatch](examples, values, sums)
            spans.append(TaskSpan(kind, microbatch, start, clock.read(), stage))
            self._store_local_tensors(computation.sends, microbatch, values)
            if microbatch != computation.sends_itself:
                send_tensors(self._transport, computation.sends, microbatch, values)
            for name in computation.returns:
                outputs[microbatch][name] = values[name]
            sums |= {name: values[sum_key(name)] for name in computation.summed}
            deferred = computation.deferred
            if deferred is not None:
                kept = stored.setdefault(stage, {})
                for name in deferred.tensors:
                    kept[tensor_key(name, microbatch)] = values[name]
                if microbatch == deferred.after:
                    start = clock.read()
                    found = deferred.function({}, {}, sums | kept)
                    spans.append(TaskSpan("gradients", None, start, clock.read(), stage))
                    sums |= {name: found[sum_key(name)] for name in reductions[stage]}
                    stored.pop(stage).clear()
            if kind == self._last_kind:
                # An update copies each weight of which a tensor that was read is still alive.
                live.pop((stage, microbatch)).clear()
        self._synchronize_idle_ranks()
        results = self._output_gather.gather(outputs)
        start = clock.read()
        averages = self._average_gradients(sums)
        stop = clock.read()
        if any(len(group) > 1 for group in self._groups) and (
            sums.keys() > self._grouped_reductions
        ):
            spans.append(TaskSpan("all_reduce", None, start, stop))
        results |= self._run_update(averages, arguments)
        spans.append(TaskSpan("update", None, stop, clock.read()))
        return results, spans

    # Messages between stages.

    def _store_local_tensors(
        self, sends: Sequence[Resharding], microbatch: int, values: Values
    ) -> None:
        """Stores tensors for other stages of this rank."""
        for message, axis, pieces in sends:
            for piece in pieces:
                if piece.peer == self._transport.rank:
                    part = slice_for_peer(values[message.tensor], axis, piece)
                    self._local_tensors[message.tensor, message.target, microbatch] = part

    def _start_receives(self, tasks: Sequence[StageTask]) -> None:
        """Starts to receive the inputs of tasks from other ranks."""
        for task in tasks:
            computation = self._computations[task.kind, task.stage]
            for tensor, peer, dtype, shape, target in computation.peer_tensors:
                name = transfer_name(tensor, target, task.microbatch)
                self._pending[task, tensor, peer] = self._transport.start_receive(
                    dtype, shape, peer, name
                )

    def _receive(self, computation: StageComputation, task: StageTask, values: Values) -> None:
        """Waits for the inputs of a task and adds them to its values."""
        for message, axis, pieces in computation.receives:
            parts = []
            for piece in pieces:
                if piece.peer == self._transport.rank:
                    key = (message.tensor, message.target, task.microbatch)
                    part = self._local_tensors.pop(key)
                else:
                    part = self._pending.pop((task, message.tensor, piece.peer))()
                is_weighted = piece.weight != 1
                parts.append(part * tf.constant(piece.weight, part.dtype) if is_weighted else part)
            if axis is not None:
                values[message.tensor] = concat(parts, axis)
            else:
                values[message.tensor] = parts[0] if len(parts) == 1 else tf.add_n(parts)

    def _synchronize_idle_ranks(self) -> None:
        """Makes ranks without a stage wait until the root has computed the step.

        Otherwise they would wait for no rank, and might send examples ever further ahead.
        """
        root, ranks = self.layout.ranks[0][0], range(self.layout.num_ranks)
        idle = [rank for rank in ranks if not self.layout.rank_stages(rank)]
        if not self.stages:
            self._transport.receive(tf.float32, [], root, "computed")
        if self._transport.rank == root:
            for rank in idle:
                self._transport.send(tf.zeros([]), rank, "computed")

    # Update.

    def _average_gradients(self, sums: Values) -> Values:
        """Returns the reduced gradients, by output of the trace's reductions.

        Args:
            sums: sums over microbatches, divided by the numbers of microbatches and replicas.
        """
        averages = dict(sums)
        for group, names in self._group_reductions.items():
            if len(group) > 1:
                number = self.layout.replica_groups.index(group)
                rest = {name: sums[name] for name in names if name not in self._grouped_reductions}
                averages |= fused_all_reduce(rest, group, self._transport, f"rest, {number}")
        gradients = {f"{name}:0": average for name, average in averages.items()}
        for name in self._summed_gradients:
            gradients[name] *= tf.cast(self.layout.num_ranks, gradients[name].dtype)
        return gradients

    def _run_update(self, gradients: Values, arguments: Values) -> Values:
        """Updates the rank's variables and returns the step's results that the update computes."""
        values = dict(gradients)
        for round_index, function in enumerate(self._update_functions):
            for broadcast in self._update.broadcasts:
                if broadcast.round == round_index:
                    self._broadcast_from_stage(values, broadcast.tensor, broadcast.source)
            values |= function(arguments, values)
        results: Values = {}
        for name, stage in self._update.outputs.items():
            if stage is not None:
                self._broadcast_from_stage(values, name, stage)
            results[name] = values[name]
        return results

    def _broadcast_from_stage(self, values: Values, name: str, stage: int) -> None:
        """Adds a tensor of one stage to the values of all ranks."""
        tensor = self._partition.tensor(name)
        root = self.layout.ranks[stage][0]
        values[name] = broadcast_tensor(
            self._transport,
            values.get(name),
            root,
            self.layout.num_ranks,
            tensor.dtype,
            tensor.shape,
            name,
        )
