"""Layers of a recorded step: consecutive regions between which the step can be cut."""

from dataclasses import dataclass
from functools import cached_property

import tensorflow as tf

from tf_libra.model_parallel.capture.recorded_step import RecordedStep
from tf_libra.model_parallel.capture.step_dataflow import StepDataflow


@dataclass(frozen=True)
class TracedLayer:
    """Consecutive regions of the forward computation that no cut divides.

    Attributes:
        name: name of the region with the most parameters.
        start: first region.
        stop: one past the last region.
        parameter_bytes: bytes of the trained variables that the layer uses first.
    """

    name: str
    start: int
    stop: int
    parameter_bytes: int


class StepGraph(StepDataflow):
    """A recorded step with the layers between which it can be cut into stages."""

    def __init__(
        self,
        recording: RecordedStep,
        has_branches: bool = False,
        trained: "StepGraph | None" = None,
        output_names: tuple[str, ...] | None = None,
        rank_local: frozenset[str] = frozenset(),
    ) -> None:
        """Analyzes a trace.

        Args:
            recording: the trace.
            has_branches: whether a region that only joins or begins branches is a layer.
            trained: the step's trace in training mode, whose layers an evaluation shares.
            output_names: tensors to return; None for those that the step returns.
            rank_local: see `StepDataflow`.

        Raises:
            ValueError: ops cannot be divided between microbatch and update, or the step is an
                evaluation and `trained` is None.
        """
        if recording.is_evaluation and trained is None:
            raise ValueError(
                f"{recording.name} computes no gradient of a trainable variable with"
                " tf.GradientTape; stages are planned for a training step, and run an evaluation"
                " only after it"
            )
        self._has_branches = has_branches
        self._trained = trained
        self._output_names = output_names
        super().__init__(recording, rank_local)

    @cached_property
    def indivisible_ranges(self) -> dict[tuple[int, int], str]:
        """Ranges of regions, ends included, that no cut may divide, with the op that forbids it."""
        ranges: dict[tuple[int, int], str] = {}

        def join(region: int, other: int, op_name: str) -> None:
            if region != other:
                ranges.setdefault((min(region, other), max(region, other)), op_name)

        users: dict[str, list[int]] = {}
        for index in sorted(self.microbatch_ops):
            op = self.ops[index]
            if not self.is_pinned(index):
                continue
            region = self.region(index)
            for handle in self.handles[index]:
                users.setdefault(handle, []).append(index)
            for tensor in op.inputs:
                producer = self.op_index[tensor.op.name]
                if tensor.dtype in (tf.variant, tf.resource) and self.is_pinned(producer):
                    join(self.region(producer), region, op.name)
        for handle, indices in users.items():
            for index in indices:
                join(self.region_of_variable(handle), self.region(index), self.ops[index].name)
        return ranges

    @cached_property
    def layers(self) -> tuple[TracedLayer, ...]:
        """The layers between which the step can be cut, in forward order.

        A region without trained variables belongs to the layer before it. If branches count, it is
        a layer of its own when it takes inputs from layers before the previous one.

        Raises:
            ValueError: an evaluation has other layers than the training step.
        """
        if self.recording.is_evaluation:
            return self._layers_of_training()
        sizes = [0] * self.num_regions
        trained = {self.placeholder_of(var): var for var in self.recording.variables.values()}
        for placeholder, variable in trained.items():
            if placeholder is not None:
                region = self.region_of_variable(placeholder)
                sizes[region] += variable.dtype.size * variable.shape.num_elements()
        starts = self._layer_starts(sizes)
        stops = [*starts[1:], self.num_regions]
        names = [*(end.name for end in self.recording.layer_ends), "end"]
        layers = []
        for start, stop in zip(starts, stops, strict=True):
            largest = max(range(start, stop), key=lambda region: (sizes[region], -region))
            layers.append(TracedLayer(names[largest], start, stop, sum(sizes[start:stop])))
        return tuple(layers)

    def _layer_starts(self, sizes: list[int]) -> list[int]:
        """Returns the first region of each layer.

        Args:
            sizes: parameter bytes by region.
        """
        forbidden = {
            cut for start, stop in self.indivisible_ranges for cut in range(start + 1, stop + 1)
        }
        starts = [0]
        for region in range(1, self.num_regions):
            layer_has_parameters = any(sizes[starts[-1] : region])
            is_start = bool(sizes[region]) and layer_has_parameters
            if self._has_branches:
                joins_branches = min(self._source_regions[region], default=region) < starts[-1]
                is_start = joins_branches or (
                    bool(sizes[region]) and (layer_has_parameters or starts[-1] > 0)
                )
            if is_start and region not in forbidden:
                starts.append(region)
        return starts

    def _layers_of_training(self) -> tuple[TracedLayer, ...]:
        assert self._trained is not None
        layers = self._trained.layers
        names = [end.name for end in self.recording.layer_ends]
        trained_names = [end.name for end in self._trained.recording.layer_ends]
        starts = {layer.start for layer in layers}
        dividing_ops = [
            op_name
            for (first, last), op_name in self.indivisible_ranges.items()
            if starts & {*range(first + 1, last + 1)}
        ]
        if names != trained_names or dividing_ops:
            reason = (
                f"{dividing_ops[0]} uses values of another layer"
                if dividing_ops
                else f"{names} instead of {trained_names}"
            )
            raise ValueError(
                f"{self.recording.name} has other layers in evaluation than in training ({reason});"
                " evaluate in a separate function"
            )
        return layers

    @cached_property
    def _source_regions(self) -> list[set[int]]:
        """The other regions from which each region takes inputs."""
        sources: list[set[int]] = [set() for _ in range(self.num_regions)]
        for index in self.microbatch_ops:
            if self.is_pinned(index):
                region = self.region(index)
                sources[region] |= {
                    self.region(producer)
                    for producer in self.input_indices(index)
                    if self.is_pinned(producer) and self.region(producer) != region
                }
        return sources

    def explain_single_layer(self) -> str:
        """Returns the reason why the step has only one layer."""
        if self.indivisible_ranges:
            widest = max(self.indivisible_ranges, key=lambda ends: ends[1] - ends[0])
            return f"{self.indivisible_ranges[widest]} uses values of another layer"
        if self.recording.nested_layers:
            names = ", ".join(self.recording.nested_layers[:3])
            return f"its layers ({names}) run inside a nested tf.function, a loop or a condition"
        if self.recording.layer_ends:
            return "it has one layer with trained variables"
        return (
            "it has no layers of a Keras Sequential or functional model, and does not call"
            " tf_libra.boundary"
        )
