"""Traces of a step for one kind of arguments, by batch size, with cached analyses."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tf_libra.model_parallel.capture import step_arguments
from tf_libra.model_parallel.capture.batch_axes import BatchAxes, check_batch_size_use
from tf_libra.model_parallel.capture.step_graph import StepGraph
from tf_libra.model_parallel.capture.step_recorder import StepRecorder
from tf_libra.model_parallel.partition.replicated_random import find_replicated_random_ops
from tf_libra.model_parallel.partition.stage_partition import StagePartition
from tf_libra.model_parallel.partition.subgraph import SubgraphExtractor
from tf_libra.model_parallel.partition.update_phase import UpdatePhase
from tf_libra.variable_sync.bound_variables import BoundVariable, bound_variables


@dataclass(frozen=True)
class SizedPartition:
    """A step in stages, traced for one batch size.

    Attributes:
        partition: the step in stages.
        axes: batch axes of the trace.
        extractor: extracts functions from the trace.
    """

    partition: StagePartition
    axes: BatchAxes
    extractor: SubgraphExtractor


class SizedTraces:
    """Traces of a step by batch size, each made on its first use.

    Attributes:
        examples_per_rank: number of examples that each rank passes.
        microbatch_size: number of examples of a microbatch.
        shard_size: number of examples of one rank's share of a microbatch; None if all ranks
            cannot share one.
        input_order: by argument of a trace, its index among the flattened tensor arguments.
        output_names: names of the tensors that traces return; None for those of the step.
        rank_local: placeholders of variables that every rank writes by itself.
    """

    def __init__(
        self,
        recorder: StepRecorder,
        arguments: Any,
        examples_per_rank: int,
        microbatch_size: int,
        *,
        num_ranks: int = 1,
        has_branches: bool = False,
        trained: StepGraph | None = None,
    ) -> None:
        """Traces the step for a microbatch.

        Args:
            recorder: recorder of the step.
            arguments: arguments from `step_arguments.convert_arguments`.
            examples_per_rank: their number of examples.
            microbatch_size: number of examples of a microbatch.
            num_ranks: number of ranks of the job.
            has_branches: see `StepGraph`.
            trained: see `StepGraph`.

        Raises:
            ValueError: stages do not support the step.
        """
        self.examples_per_rank = examples_per_rank
        self.microbatch_size = microbatch_size
        is_shared = num_ranks > 1 and microbatch_size % num_ranks == 0
        self.shard_size = microbatch_size // num_ranks if is_shared else None
        # The size to compare a microbatch with. A shard is traced anyway. A single example is
        # unsuitable: any axis with one element could be its batch axis.
        self._other_size = (
            self.shard_size if self.shard_size not in (None, 1) else 2 * microbatch_size
        )
        self._recorder = recorder
        self._graph_options = has_branches, trained
        self.output_names: tuple[str, ...] | None = None
        self.rank_local: frozenset[str] = frozenset()
        self._specs = step_arguments.argument_specs(arguments, microbatch_size)
        self._graphs: dict[int, StepGraph] = {}
        self._axes: dict[int, BatchAxes] = {}
        self._partitions: dict[tuple[int, tuple[int, ...]], StagePartition] = {}
        self._extractors: dict[int, SubgraphExtractor] = {}
        self._is_update_checked = False
        if not self._is_size_independent():
            # A first trace may build state, such as optimizer slots, that later traces find built.
            recorder.reset()
            self._drop_traces(microbatch_size)
            if self._other_size == self.shard_size and not self._is_size_independent():
                # The script computes other ops for such a small batch, or rejects it.
                self._other_size = 2 * microbatch_size
        if not self._has_separable_update():
            recorder.enable_branch_selection()
            self._drop_traces(*self._graphs)
        graph = self.microbatch_graph
        step_arguments.check_example_dtypes(graph)
        args, kwargs = step_arguments.resize_batch(arguments, microbatch_size)
        self.input_order = recorder.input_order(graph.recording.concrete, args, kwargs)

    @property
    def microbatch_graph(self) -> StepGraph:
        """The step, traced for a microbatch."""
        return self.graph(self.microbatch_size)

    @property
    def other_graph(self) -> StepGraph:
        """The step, traced for another batch size."""
        return self.graph(self._other_size)

    def graph(self, size: int) -> StepGraph:
        """Returns the step, traced for a batch size."""
        if size not in self._graphs:
            args, kwargs = step_arguments.argument_specs(self._specs, size)
            recording = self._recorder.record(args, kwargs)
            options = (*self._graph_options, self.output_names, self.rank_local)
            self._graphs[size] = StepGraph(recording, *options)
        return self._graphs[size]

    def return_instead(self, output_names: tuple[str, ...], rank_local: frozenset[str]) -> None:
        """Lets all traces return other tensors than the step, and not write some variables."""
        self.output_names, self.rank_local = output_names, rank_local
        for size, graph in self._graphs.items():
            options = (*self._graph_options, output_names, rank_local)
            self._graphs[size] = StepGraph(graph.recording, *options)
        self._drop_traces()
        self._is_update_checked = False

    def _is_size_independent(self) -> bool:
        """Returns whether the step computes the same ops for the other size."""
        try:
            self.graph(self.microbatch_size)
        except ValueError:
            return False
        try:
            self.axes(self.microbatch_size)
        except Exception:  # the script may raise anything for an unusual batch size
            return False
        return True

    def _has_separable_update(self) -> bool:
        """Returns whether every layer, as a stage, can update its own variables."""
        try:
            self.check_update()
        except ValueError:
            return False
        return True

    def _drop_traces(self, *sizes: int) -> None:
        """Drops traces for the given sizes, and the analyses of all traces."""
        for size in sizes:
            self._graphs.pop(size, None)
        self._axes.clear()
        self._partitions.clear()

    def axes(self, size: int) -> BatchAxes:
        """Returns the batch axes of the trace for a batch size.

        Raises:
            ValueError: the step computes other ops for another batch size.
        """
        if size not in self._axes:
            other = self._other_size if size == self.microbatch_size else self.microbatch_size
            self._axes[size] = BatchAxes(self.graph(size), size, self.graph(other), other)
        return self._axes[size]

    def named_arguments(self, arguments: Any, size: int) -> dict[str, Any]:
        """Returns arguments of `size` examples by name, made from those that a rank passes."""
        resized = step_arguments.resize_batch(arguments, size)
        tensors = step_arguments.flatten_tensors(resized)
        ordered = (tensors[index] for index in self.input_order)
        return dict(zip(self.microbatch_graph.arguments, ordered, strict=True))

    @property
    def captured_variables(self) -> dict[str, BoundVariable]:
        """Variables of stages that every trace captures, by placeholder, in the order of inputs."""
        return {
            placeholder: variable
            for placeholder, variable in self._every_variable.items()
            if placeholder not in self.rank_local
        }

    @cached_property
    def _every_variable(self) -> dict[str, BoundVariable]:
        concrete = self.microbatch_graph.recording.concrete
        found = bound_variables(concrete, [None] * len(self.microbatch_graph.arguments))
        inputs = concrete.graph.inputs
        return {
            inputs[variable.index].op.name: variable for variable in found if variable.is_variable
        }

    @cached_property
    def variables(self) -> dict[int, BoundVariable]:
        """All captured variables by key, also those that every rank writes by itself."""
        return {variable.key: variable for variable in self._every_variable.values()}

    def variable_keys(self, placeholders: Iterable[str]) -> frozenset[int]:
        """Returns the keys of captured variables, from their placeholders."""
        every = self._every_variable
        return frozenset(every[name].key for name in placeholders if name in every)

    def check_update(self) -> None:
        """Raises `ValueError` if a layer, as a stage, could not update its variables."""
        if not self._is_update_checked:
            UpdatePhase(self.layer_partition)
            check_batch_size_use(self.microbatch_graph, self.other_graph)
            self._is_update_checked = True

    @property
    def layer_partition(self) -> StagePartition:
        """The step for a microbatch, with one stage per layer."""
        return self.partition(range(len(self.microbatch_graph.layers)))

    def partition(self, starts: Sequence[int], size: int | None = None) -> StagePartition:
        """Returns the step in stages, traced for a batch size.

        Args:
            starts: by stage, its first layer.
            size: batch size; None for that of a microbatch.

        Raises:
            ValueError: the step cannot be cut there.
        """
        size = self.microbatch_size if size is None else size
        key = (size, tuple(starts))
        if key not in self._partitions:
            self._partitions[key] = StagePartition(self.graph(size), key[1])
        return self._partitions[key]

    def extractor(self, size: int) -> SubgraphExtractor:
        """Returns the function extractor of the trace for a batch size; raises as `axes` does."""
        if size not in self._extractors:
            graph = self.graph(size)
            random_ops = None
            if size != self.microbatch_size:
                random_ops = find_replicated_random_ops(
                    graph, self.axes(size), self.microbatch_graph
                )
            self._extractors[size] = SubgraphExtractor(graph.recording.concrete, random_ops)
        return self._extractors[size]

    def sized_partition(self, size: int, starts: Sequence[int]) -> SizedPartition:
        """Returns the step in stages for a batch size; raises as `partition` and `axes` do."""
        return SizedPartition(self.partition(starts, size), self.axes(size), self.extractor(size))

    def check_same_layers(self, other: "SizedTraces") -> None:
        """Raises `ValueError` if the step has other layers for another kind of arguments."""
        own_names, other_names = (
            tuple(layer.name for layer in traces.microbatch_graph.layers)
            for traces in (self, other)
        )
        if own_names != other_names:
            raise ValueError(
                f"{self.microbatch_graph.recording.name} has layers {own_names} for these"
                f" arguments, but {other_names} for its first ones"
            )
