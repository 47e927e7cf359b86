"""Traces of a step for arguments of one kind and each number of samples that a rank computes."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tf_libra.model_parallel.capture import step_arguments
from tf_libra.model_parallel.capture.batch_axes import BatchAxes, check_batch_size_use
from tf_libra.model_parallel.capture.step_graph import StepGraph
from tf_libra.model_parallel.capture.step_recorder import StepRecorder
from tf_libra.model_parallel.partition.replicated_random import draws
from tf_libra.model_parallel.partition.stage_partition import StagePartition
from tf_libra.model_parallel.partition.subgraph_extraction import SubgraphExtraction
from tf_libra.model_parallel.partition.update_phase import Update
from tf_libra.variable_sync.bound_variables import BoundVariable, held


@dataclass(frozen=True)
class Traced:
    """A step in stages, traced for so many samples.

    Attributes:
        cut: the step.
        axes: of the trace.
        extraction: makes functions of it.
    """

    cut: StagePartition
    axes: BatchAxes
    extraction: SubgraphExtraction


class Traces:
    """Traces of a step for batches of different sizes, each made when it is first requested.

    Results of the analysis of a trace are cached.

    Attributes:
        samples_per_rank: how many samples each rank passes.
        size: samples of a microbatch.
        share: samples of one rank's share of a microbatch; None: there is none.
        order: which of the tensors among arguments, flattened, each argument of a trace is.
    """

    def __init__(
        self,
        recorder: StepRecorder,
        given: Any,
        samples_per_rank: int,
        size: int,
        *,
        num_ranks: int = 1,
        has_branches: bool = False,
        trained: StepGraph | None = None,
    ) -> None:
        """Traces the step for a microbatch.

        Args:
            recorder: of the step.
            given: arguments, as `step_arguments.convert_arguments` returns them.
            samples_per_rank: their number of samples.
            size: samples of a microbatch.
            num_ranks: of the job.
            has_branches: see `StepGraph`.
            trained: see `StepGraph`.

        Raises:
            ValueError: the step does what cannot be cut into stages; named.
        """
        self.samples_per_rank = samples_per_rank
        self.size = size
        self.share = size // num_ranks if num_ranks > 1 and size % num_ranks == 0 else None
        # Traced anyway, where it is more than one sample, whose axis could be any of one element.
        self._compared = self.share if self.share not in (None, 1) else 2 * size
        self._recorder = recorder
        self._how = has_branches, trained
        self._specs = step_arguments.argument_specs(given, size)
        self._graphs: dict[int, StepGraph] = {}
        self._axes: dict[int, BatchAxes] = {}
        self._cuts: dict[tuple[int, tuple[int, ...]], StagePartition] = {}
        self._has_update = False
        self._extractions: dict[int, SubgraphExtraction] = {}
        if not self._are_alike():
            # What a first trace builds, such as an optimizer without slots, others find built.
            recorder.reset()
            self._forget(size)
            if self._compared == self.share and not self._are_alike():
                self._compared = 2 * size  # so few samples are another computation, or none
        if not self._is_updated_apart():
            recorder.enable_branch_selection()
            self._forget(*self._graphs)
        step_arguments.check_example_dtypes(self.whole)
        args, kwargs = step_arguments.resize_batch(given, size)
        self.order = recorder.input_order(self.whole.recording.concrete, args, kwargs)

    @property
    def whole(self) -> StepGraph:
        """The step for a microbatch."""
        return self.graph(self.size)

    def graph(self, size: int) -> StepGraph:
        """The step for so many samples."""
        if size not in self._graphs:
            args, kwargs = step_arguments.argument_specs(self._specs, size)
            self._graphs[size] = StepGraph(self._recorder.record(args, kwargs), *self._how)
        return self._graphs[size]

    def _are_alike(self) -> bool:
        """Returns whether the trace of a microbatch is the same for another size; see `axes`."""
        try:
            self.graph(self.size)
        except ValueError:
            return False
        try:
            self.axes(self.size)
        except Exception:  # whatever the script says to so few samples
            return False
        return True

    def _is_updated_apart(self) -> bool:
        """Returns whether every layer, as a stage, can update its own variables."""
        try:
            self.check_update()
        except ValueError:
            return False
        return True

    def _forget(self, *sizes: int) -> None:
        """Forgets traces for so many samples, and what was found in any."""
        for size in sizes:
            self._graphs.pop(size, None)
        self._axes.clear()
        self._cuts.clear()

    def axes(self, size: int) -> BatchAxes:
        """Returns the axes along which samples lie in the trace for `size` samples.

        Raises:
            ValueError: the step computes something else for another size.
        """
        if size not in self._axes:
            other = self._compared if size == self.size else self.size
            self._axes[size] = BatchAxes(self.graph(size), size, self.graph(other), other)
        return self._axes[size]

    def arguments(self, given: Any, size: int) -> dict[str, Any]:
        """Returns arguments of `size` samples by name, made from those that a rank passes."""
        leaves = step_arguments.flatten_tensors(step_arguments.resize_batch(given, size))
        return dict(zip(self.whole.arguments, (leaves[i] for i in self.order), strict=True))

    @cached_property
    def captured(self) -> dict[str, BoundVariable]:
        """The variables that every trace captures, by placeholder, in the order of its inputs."""
        concrete = self.whole.recording.concrete
        found = held(concrete, [None] * len(self.whole.arguments))
        inputs = concrete.graph.inputs
        return {inputs[one.index].op.name: one for one in found if one.is_variable}

    @cached_property
    def variables(self) -> dict[int, BoundVariable]:
        """The same by key."""
        return {one.key: one for one in self.captured.values()}

    def check_update(self) -> None:
        """Raises `ValueError` where a layer, as a stage, could not update what it has to."""
        if not self._has_update:
            Update(self.each_layer)
            check_batch_size_use(self.whole, self.graph(self._compared))
            self._has_update = True

    @property
    def each_layer(self) -> StagePartition:
        """The step for a microbatch, every layer a stage."""
        return self.cut(range(len(self.whole.layers)))

    def cut(self, starts: Sequence[int], size: int | None = None) -> StagePartition:
        """The step for so many samples, by default a microbatch, in stages.

        Args:
            starts: by stage, its first layer.
            size: how many samples.

        Raises:
            ValueError: it cannot be cut there.
        """
        size = self.size if size is None else size
        key = (size, tuple(starts))
        if key not in self._cuts:
            self._cuts[key] = StagePartition(self.graph(size), key[1])
        return self._cuts[key]

    def extraction(self, size: int) -> SubgraphExtraction:
        """Returns the maker of functions of the trace for `size` samples; errors as in `axes`."""
        if size not in self._extractions:
            graph = self.graph(size)
            drawn = None if size == self.size else draws(graph, self.axes(size), self.whole)
            self._extractions[size] = SubgraphExtraction(graph.recording.concrete, drawn)
        return self._extractions[size]

    def traced(self, size: int, starts: Sequence[int]) -> Traced:
        """All that is executed of the step for so many samples; errors as of `cut`."""
        return Traced(self.cut(starts, size), self.axes(size), self.extraction(size))

    def check_layers(self, other: "Traces") -> None:
        """Raises `ValueError` where the step has other layers for arguments of another kind."""
        own, others = (tuple(layer.name for layer in one.whole.layers) for one in (self, other))
        if own != others:
            raise ValueError(
                f"{self.whole.recording.name} has other layers for arguments of another kind:"
                f" {own} and {others}"
            )
