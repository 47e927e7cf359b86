"""Runs one rank's part of a step: its stages of every microbatch, then its part of the update."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_libra.model_parallel.capture.horovod_reductions import is_sum_reduction
from tf_libra.model_parallel.execution.gradient_reduction import fused_all_reduce
from tf_libra.model_parallel.execution.input_scatter import InputScatter, Values
from tf_libra.model_parallel.execution.metrics import Metric, added_up_in
from tf_libra.model_parallel.execution.output_gather import GatheredOutput
from tf_libra.model_parallel.execution.stage_tasks import Block, Blocks, part_of, send, sent_as
from tf_libra.model_parallel.execution.subgraph_function import SubgraphFunction, sum_of
from tf_libra.model_parallel.execution.transport import Transport
from tf_libra.model_parallel.partition.batch_sharding import BatchShards
from tf_libra.model_parallel.partition.layout import Layout, StageTask
from tf_libra.model_parallel.partition.resharding import Resharding, check_exchanges, joined
from tf_libra.model_parallel.partition.sized_traces import Traced
from tf_libra.model_parallel.partition.stage_partition import StagePartition
from tf_libra.model_parallel.partition.update_phase import Update


@dataclass(frozen=True)
class TaskRecord:
    """When one rank computed a microbatch, in seconds since its step began.

    Attributes:
        kind: "forward" or "backward".
        microbatch: which.
        start_seconds: when all that it needs was there.
        stop_seconds: when it had ended.
        stage: whose layers.
    """

    kind: str
    microbatch: int
    start_seconds: float
    stop_seconds: float
    stage: int = 0


class StageExecutor:
    """A step under a plan, on one rank.

    Attributes:
        layout: who computes what.
        stages: those of this rank.
        averaged: of what is returned and computed of metrics and of something else, too, by name of
            the tensor, what the metrics add up; results of replicas are averaged.
        executed: what the last step computed when.
        reduced: when it all-reduced what was left when backward computation had ended, in seconds
            since it began; None: nothing.
        updated: when it updated what its stages have.
    """

    def __init__(
        self,
        layout: Layout,
        traced: Mapping[int, Traced],
        samples_per_rank: int,
        transport: Transport,
    ) -> None:
        """Makes the functions that the rank needs.

        Args:
            layout: who computes what.
            traced: the step in these stages, by the samples it is traced for: at least one, and all
                numbers that this rank computes of a microbatch in any stage.
            samples_per_rank: how many samples each rank passes.
            transport: reaches the other ranks.

        Raises:
            ValueError: the plan cannot be executed with such batches, or not with this step.
        """
        self.layout = layout
        self._transport = transport
        self._shares = BatchShards(layout, samples_per_rank)
        self.stages = layout.stages_of(transport.rank)
        self._teams = [team for team in layout.teams if transport.rank in team]
        any_trace = next(iter(traced.values()))
        self._cut = cut = any_trace.cut  # for what all traces have in common
        self._update = Update(cut)
        self._order = layout.orders[transport.rank]
        for one in traced.values():
            check_exchanges(one.cut, layout, one.axes)
        self._returned = {
            one.name: GatheredOutput.of(cut, any_trace.axes, one) for one in _returned(cut)
        }
        self._metrics = {
            one.name: metric
            for one in _returned(cut)
            if self._returned[one.name].is_running
            and not self._returned[one.name].is_same
            and len(self._ranks_of(one.name)) > 1
            and (metric := Metric.of(cut, any_trace.extraction, one)) is not None
        }
        self.averaged = {
            name: added_up_in(cut.graph, cut.tensor(name))
            for name, one in self._returned.items()
            if one.is_running
            and not one.is_same
            and one.is_floating
            and len(self._ranks_of(name)) > 1
            and name not in self._metrics
        }
        kinds = dict.fromkeys(task.kind for task in self._order)
        self._last_kind = "backward" if "backward" in kinds else "forward"
        blocks = Blocks(self._shares, list(self._returned), transport)
        self._blocks = {
            (kind, stage): blocks.block(traced[self._shares.size_in(stage)], kind, stage)
            for stage in self.stages
            for kind in kinds
        }
        # What is all-reduced when backward computation has ended.
        self._reduced = {
            name for stage in self.stages for one in layout.groups_of(stage) for name in one
        }
        self._updates = [
            SubgraphFunction.of(any_trace.extraction, self._update.part(self.stages, number))
            for number in range(self._update.num_rounds)
        ]
        needs = {
            team: {
                name
                for stage, ranks in enumerate(layout.ranks)
                for phase in (cut.forward(stage), cut.backward(stage))
                for name in cut.parts[phase].arguments
                if ranks == team
            }
            for team in layout.teams
        }
        axes = {
            name: any_trace.axes.batch_axis(f"{name}:0")
            for name in cut.graph.arguments
            if cut.tensor(f"{name}:0").shape.rank != 0
        }
        arguments = cut.graph.arguments
        self._distribute = InputScatter(self._shares, needs, axes, arguments, transport)
        # Of these the step takes sums over ranks, as Horovod would add them up.
        self._summed = [
            f"{name}:0"
            for stage in self.stages
            for name in cut.variables[stage]
            if is_sum_reduction(cut.graph.ops[cut.graph.op_index[name]])
        ]
        self._gradients = {
            team: [
                name
                for stage, ranks in enumerate(layout.ranks)
                if ranks == team
                for name in cut.variables[stage]
            ]
            for team in self._teams
        }
        self._handed: dict[tuple[str, int, int], Any] = {}  # from one stage of this rank to another
        # What has begun to come in, by what it is needed for, tensor and rank.
        self._expected: dict[tuple[StageTask, str, int], Callable[[], Any]] = {}
        self.executed: tuple[TaskRecord, ...] = ()
        self.reduced: tuple[float, float] | None = None
        self.updated = (0.0, 0.0)

    @property
    def captures(self) -> frozenset[str]:
        """Placeholders of the variables, and other captured tensors, that this rank uses."""
        blocks = self._blocks.values()
        functions = [*(f for block in blocks for f in block.functions.values()), *self._updates]
        return frozenset().union(*(one.captures for one in functions))

    @property
    def variables(self) -> dict[str, int]:
        """The stages of variables by placeholder, without the variables that every rank has."""
        return self._update.variables

    def step(self, arguments: Sequence[Any]) -> list[Any]:
        """Runs a step.

        Args:
            arguments: the tensors that this rank passes, in the order of the trace's inputs.

        Returns:
            What the step returns, of the whole batch, as a flat list.
        """
        began = time.perf_counter()
        given = dict(zip(self._cut.graph.arguments, arguments, strict=True))
        self._expect(self._order[:1])
        batches = self._distribute(given)
        kept: dict[tuple[int, int], Values] = {}
        outputs: list[Values] = [{} for _ in range(self.layout.num_microbatches)]
        sums: Values = {}
        executed = []
        for place, task in enumerate(self._order):
            kind, stage, microbatch = task
            block = self._blocks[kind, stage]
            values = kept.setdefault((stage, microbatch), {})
            self._receive(block, task, values)
            # Comes in while this is computed.
            self._expect(self._order[place + 1 : place + 2])
            samples = batches.of(self.layout.ranks[stage], microbatch)
            start = time.perf_counter()
            values |= block.functions[microbatch](samples, values, sums)
            stop = time.perf_counter()
            executed.append(TaskRecord(kind, microbatch, start - began, stop - began, stage))
            self._hand_on(block.sends, microbatch, values)
            if microbatch != block.sends_itself:
                send(self._transport, block.sends, microbatch, values)
            for name in block.returns:
                outputs[microbatch][name] = values[name]
            if kind == "backward":
                sums |= {name: values[sum_of(name)] for name in self._cut.variables[stage]}
            if kind == self._last_kind:
                # While weights that were read are here, an update would copy them.
                kept.pop((stage, microbatch)).clear()
        self.executed = tuple(executed)
        self._keep_pace()
        returned = self._collect(outputs)
        start = time.perf_counter()
        averages = self._averages(sums)
        stop = time.perf_counter()
        has_left = any(len(team) > 1 for team in self._teams) and sums.keys() > self._reduced
        self.reduced = (start - began, stop - began) if has_left else None
        returned |= self._updated(averages, given)
        self.updated = (stop - began, time.perf_counter() - began)
        return [returned[one.name] for one in self._cut.graph.outputs]

    # What stages send each other.

    def _hand_on(self, sends: Sequence[Resharding], microbatch: int, values: Values) -> None:
        """To other stages of this rank."""
        for message, axis, pieces in sends:
            for piece in pieces:
                if piece.rank == self._transport.rank:
                    part = part_of(values[message.tensor], axis, piece)
                    self._handed[message.tensor, message.target, microbatch] = part

    def _expect(self, tasks: Sequence[StageTask]) -> None:
        """Begins to receive what is needed for them."""
        for task in tasks:
            for tensor, rank, dtype, shape, target in self._blocks[task.kind, task.stage].awaited:
                name = sent_as(tensor, target, task.microbatch)
                self._expected[task, tensor, rank] = self._transport.expect(
                    dtype, shape, rank, name
                )

    def _receive(self, block: Block, task: StageTask, values: Values) -> None:
        for message, axis, pieces in block.receives:
            parts = []
            for piece in pieces:
                if piece.rank == self._transport.rank:
                    part = self._handed.pop((message.tensor, message.target, task.microbatch))
                else:
                    part = self._expected.pop((task, message.tensor, piece.rank))()
                weighted = piece.weight != 1
                parts.append(part * tf.constant(piece.weight, part.dtype) if weighted else part)
            if axis is not None:
                values[message.tensor] = joined(parts, axis)
            else:
                values[message.tensor] = parts[0] if len(parts) == 1 else tf.add_n(parts)

    def _keep_pace(self) -> None:
        """Makes ranks without a stage wait until the root has computed the step.

        Otherwise they would wait for no rank, and might send samples ever further ahead.
        """
        root, done = self.layout.ranks[0][0], tf.zeros([])
        if not self.stages:
            self._transport.receive(done.dtype, done.shape, root, "computed")
        if self._transport.rank == root:
            for rank in range(self.layout.num_ranks):
                if not self.layout.stages_of(rank):
                    self._transport.send(done, rank, "computed")

    # What the step returns of microbatches.

    def _collect(self, outputs: list[Values]) -> Values:
        """Returns the step's results for the whole batch, on every rank."""
        found: Values = {}
        own = self._transport.rank
        for name, returned in self._returned.items():
            ranks = self._ranks_of(name)
            here = f"returned {name}"
            if name in self._metrics:
                if own in ranks:
                    found[name] = self._metrics[name].of_replicas(ranks, self._transport)
            elif own in ranks:
                part = returned.joined([values[name] for values in outputs])
                if own != ranks[0]:
                    self._transport.send(part, ranks[0], here)
                else:
                    parts = [part] + [
                        self._transport.receive(part.dtype, part.shape, rank, here)
                        for rank in ranks[1:]
                    ]
                    found[name] = returned.of_replicas(parts, len(outputs))
            size = self._shares.microbatch_size * self.layout.num_microbatches
            self._tell(found, name, ranks[0], self._cut.tensor(name).dtype, returned.shape(size))
        return found

    def _ranks_of(self, returned: str) -> tuple[int, ...]:
        """Returns the ranks that compute a tensor that the step returns."""
        phase = self._cut.phase_of(self._cut.tensor(returned))
        return self.layout.ranks[self._cut.stage_of(phase)]

    def _tell(self, values: Values, name: str, root: int, dtype: Any, shape: Sequence[int]) -> None:
        """Sends a tensor of one rank to all others."""
        if self._transport.rank != root:
            values[name] = self._transport.receive(dtype, shape, root, f"told {name}")
            return
        for rank in range(self.layout.num_ranks):
            if rank != root:
                self._transport.send(values[name], rank, f"told {name}")

    # The update.

    def _averages(self, sums: Values) -> Values:
        """The means over all microbatches and replicas, by the outputs of the reductions.

        Args:
            sums: over microbatches, divided by how many there are of both.
        """
        means = dict(sums)
        for team, names in self._gradients.items():
            if len(team) > 1:
                number = self.layout.teams.index(team)
                left = {name: sums[name] for name in names if name not in self._reduced}
                means |= fused_all_reduce(left, team, self._transport, f"left, {number}")
        found = {f"{name}:0": one for name, one in means.items()}
        return found | {
            name: found[name] * tf.cast(self.layout.num_ranks, found[name].dtype)
            for name in self._summed
        }

    def _updated(self, averages: Values, given: Values) -> Values:
        """Updates the rank's variables; what the step returns of that."""
        values = dict(averages)
        for number, function in enumerate(self._updates):
            for one in self._update.exchanged:
                if one.round == number:
                    self._tell_of_stage(values, one.tensor, one.source)
            values |= function(given, values)
        returned: Values = {}
        for name, stage in self._update.returned.items():
            if stage is not None:
                self._tell_of_stage(values, name, stage)
            returned[name] = values[name]
        return returned

    def _tell_of_stage(self, values: Values, name: str, stage: int) -> None:
        tensor = self._cut.tensor(name)
        self._tell(values, name, self.layout.ranks[stage][0], tensor.dtype, tensor.shape)


def _returned(cut: StagePartition) -> list[Any]:
    return list({one.name: one for one in cut.graph.microbatch_outputs}.values())
