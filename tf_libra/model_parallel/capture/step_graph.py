"""Classification of the ops of a recorded step: part of a layer, a microbatch, or the update.

A step computes forward and backward, sample by sample, and then updates once. A microbatch contains
the ops that depend on samples, and the state that such computation draws on (random states). The
update contains all that depends on averaged gradients, and all other writes of the step.
"""

import bisect
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tensorflow as tf

from tf_libra.internal import tf_internal
from tf_libra.model_parallel.capture.ordering import in_order
from tf_libra.model_parallel.capture.step_recorder import REDUCTION, RecordedStep

# Ops that read a variable. Their order does not matter as long as no op writes the variable.
READS = frozenset({"ReadVariableOp", "VariableShape"})
_LOOKUPS = frozenset({"ResourceGather", "ResourceGatherNd"})
_RANDOM = re.compile(r"Random|Multinomial|TruncatedNormal|ParameterizedTruncatedNormal")
# What makes a list without elements, as a loop's gradient gives the loop to fill.
_EMPTY_LISTS = frozenset({"EmptyTensorList", "TensorListReserve"})


@dataclass(frozen=True)
class Layer:
    """Consecutive parts of the forward computation that no cut divides.

    Attributes:
        name: that of its largest part.
        start: the first region; a region is what lies between two endings.
        stop: one past the last.
        parameter_bytes: of the trained variables that it uses first.
    """

    name: str
    start: int
    stop: int
    parameter_bytes: int


class StepGraph:
    """A recorded step, op by op. Ops are known by their place: what an op takes is before it.

    That is the order of creation, but for what the gradient of a loop lets the loop take as well.

    Attributes:
        recording: the trace.
        ops: all ops.
        place: of an op's name, its place.
        sample: whether an op's outputs depend on samples: replicas have others.
        free: whether any stage can compute it by itself: of arguments and constants only.
        constant: whether it is computed of constants only.
        late: whether it depends on averaged gradients, or on what the update writes.
        owner: of a variable, by the name of its placeholder, the region that uses it first.
        writes: places of the ops that have an effect in each microbatch.
        once: places of those that have one in the update.
    """

    def __init__(
        self,
        recording: RecordedStep,
        has_branches: bool = False,
        trained: "StepGraph | None" = None,
    ) -> None:
        """Looks at every op.

        Args:
            recording: the step.
            has_branches: whether what only joins branches, or begins one, is a layer of its own.
            trained: the same step where it trains, whose layers an evaluation has.

        Raises:
            ValueError: the step mixes what is of a microbatch with what is of the update; or it is
                an evaluation, and it is not known how it trains.
        """
        self.recording = recording
        self._has_branches = has_branches
        self._trained = trained
        if recording.is_evaluation and trained is None:
            raise ValueError(
                f"{recording.name} computes no gradient of a trainable variable with"
                " tf.GradientTape, so there is nothing to train: stages are those of a step that"
                " trains, and run an evaluation after it"
            )
        graph = recording.concrete.graph
        self.ops, self._created = in_order(graph.get_operations())
        self.place = {op.name: index for index, op in enumerate(self.ops)}
        num_args = len(graph.inputs) - len(recording.concrete.captured_inputs)
        self.arguments = tuple(one.op.name for one in graph.inputs[:num_args])
        self.captures = {
            inside.op.name: outside
            for outside, inside in zip(
                recording.concrete.captured_inputs, graph.inputs[num_args:], strict=True
            )
        }
        for one in graph.inputs[:num_args]:
            if one.dtype in (tf.resource, tf.variant):
                raise ValueError(
                    f"{recording.name} is given {one.op.name!r}, a variable or an iterator:"
                    " stages divide batches, which have to be tensors"
                )
        self._placeholders = {id(outside): name for name, outside in self.captures.items()}
        handles = {name: id(outside) for name, outside in self.captures.items()}
        names, accumulators, sums = recording.names(), recording.accumulators(), recording.sums()
        self._names = {name: names[one] for name, one in handles.items() if one in names}
        self._accumulators = {name for name, one in handles.items() if one in accumulators}
        self._sums = {name for name, one in handles.items() if one in sums}
        self._ends = [one.num_ops for one in recording.endings]
        self._must_run = {op.name for op in graph.control_outputs}
        self.handles = [self._handles_of(op) for op in self.ops]
        self.is_write = [
            bool(handles) and op.type not in READS | _LOOKUPS and op.op_def.is_stateful
            for op, handles in zip(self.ops, self.handles, strict=True)
        ]
        self.constant: list[bool] = []
        for op in self.ops:
            inputs = [self.constant[self.place[one.op.name]] for one in op.inputs]
            stateless = op.type != "Placeholder" and not op.op_def.is_stateful
            self.constant.append(stateless and all(inputs))
        self._running: set[int] = set()
        self._varying: set[str] = set()  # variables to which microbatches write by samples
        self.sample: list[bool] = []
        self.free: list[bool] = []
        self.late: list[bool] = []
        self.owner: dict[str, int] = {}
        self.writes: list[int] = []
        self.once: list[int] = []
        self._flow()
        self._classify()
        self._flow_through_variables()
        for place in self.writes:
            for handle in self.handles[place]:
                self.owner.setdefault(handle, self.region(place))
        self._mark_late()
        self._check()

    @property
    def num_regions(self) -> int:
        """One more than there are endings."""
        return len(self._ends) + 1

    def region(self, place: int) -> int:
        """The region in which an op of the forward computation was created."""
        return bisect.bisect_right(self._ends, self._created[place])

    def is_accumulator(self, placeholder: str) -> bool:
        """Returns whether the replicas' values of a variable are summed, as a metric's total."""
        return placeholder in self._accumulators and placeholder in self._sums

    def varies(self, placeholder: str) -> bool:
        """Returns whether microbatches write a variable from the samples of their own replica."""
        return placeholder in self._varying

    def variable_name(self, placeholder: str) -> str:
        """Returns the name of a variable."""
        return self._names.get(placeholder, placeholder)

    def is_forward(self, place: int) -> bool:
        """Returns whether an op was created outside of the gradient computation."""
        first, stop = self.recording.gradient_ops
        return not first <= self._created[place] < stop

    def inputs(self, place: int) -> list[int]:
        """Places of the ops whose outputs an op takes."""
        return [self.place[one.op.name] for one in self.ops[place].inputs]

    def is_bound(self, place: int) -> bool:
        """Returns whether an op belongs to its own region, not to the regions of its inputs."""
        op = self.ops[place]
        if not self.is_forward(place) or op.type == "Placeholder" or self.free[place]:
            return False
        if op.type in READS:
            return place in self._running
        return self.sample[place] or bool(op.op_def.is_stateful)

    def _handles_of(self, op: Any) -> tuple[str, ...]:
        if op.type == "Placeholder":
            return ()
        return tuple(
            one.op.name
            for one in op.inputs
            if one.dtype == tf.resource and one.op.name in self.captures
        )

    def _flow(self) -> None:
        """Finds the ops that depend on samples, and the region where samples meet each variable."""
        arguments = set(self.arguments)
        count = len(self.ops)
        self.sample, self.free = [False] * count, [False] * count
        variables: list[frozenset[str]] = [frozenset()] * count
        self.owner = {}
        for place, op in enumerate(self.ops):
            if op.type == "Placeholder":
                is_argument = op.name in arguments
                self.sample[place] = is_argument and op.outputs[0].shape.rank != 0
                self.free[place] = is_argument or op.outputs[0].dtype != tf.resource
                continue
            if op.type == REDUCTION:
                continue  # what follows is of the update
            inputs = self.inputs(place)
            is_read = place in self._running
            varies = is_read and not self._varying.isdisjoint(self.handles[place])
            self.sample[place] = varies or any(self.sample[i] for i in inputs)
            self.free[place] = (
                not op.op_def.is_stateful
                and all(self.free[i] for i in inputs)
                and (
                    op.type in _EMPTY_LISTS
                    or not any(one.dtype in (tf.variant, tf.resource) for one in op.outputs)
                )
            )
            if (self.sample[place] or is_read) and self.is_forward(place):
                for used in (self.handles[place], *(variables[i] for i in inputs)):
                    for one in used:
                        region = min(self.region(place), self.num_regions - 1)
                        self.owner[one] = min(self.owner.get(one, region), region)
            if not self.sample[place] and not self.free[place]:
                variables[place] = frozenset(self.handles[place]).union(
                    *(variables[i] for i in inputs)
                )
        self._own_what_goes_on(variables)

    def _own_what_goes_on(self, variables: Sequence[frozenset[str]]) -> None:
        """Assigns to a layer the variables that its variables are updated from in a microbatch.

        An example is the vector of a power iteration that normalizes a weight: only the weight
        meets samples. `variables`: by place, the variables that ops are computed from.
        """
        for place in reversed(range(len(self.ops))):
            if not self.is_write[place] or not self._is_in_time(place):
                continue
            handles = self._written_by(place)
            taken = frozenset().union(*(variables[i] for i in self.inputs(place)))
            goes_on = self.ops[place].type != "AssignVariableOp" or taken.issuperset(handles)
            regions = [self.owner[one] for one in handles if one in self.owner]
            if goes_on and regions:
                for one in taken.union(handles):
                    self.owner[one] = min(self.owner.get(one, self.num_regions), *regions)

    def _flow_through_variables(self) -> None:
        """The same with what is read of variables after a microbatch has written them.

        A random state or a counter, which samples do not change, is the same on every replica; what
        metrics add up is each one's own.
        """
        before: set[str] | None = None
        while before != self._varying:
            before = set(self._varying)
            self._flow()
            self._varying |= {
                handle
                for place in self.writes
                for handle in self._written_by(place)
                if self.sample[place] or handle in self._accumulators
            }

    def _written_by(self, place: int) -> set[str]:
        """The variables to which an op writes; a call may only read others that it is given."""
        _, written = tf_internal.get_read_write_resource_inputs(self.ops[place])
        return {one.op.name for one in written} & {*self.handles[place]}

    def _classify(self) -> None:
        """Assigns effects to microbatches or the update; finds reads after microbatch writes."""
        after = self._after_update()
        self._leave_to_update(after)
        self.writes, self.once = [], []
        written: dict[str, set[str]] = {}
        for place, op in enumerate(self.ops):
            if op.type == REDUCTION or op.name not in self._must_run:
                if not self.is_write[place]:
                    continue
            elif op.type in READS | _LOOKUPS or (_RANDOM.search(op.type) and not op.control_inputs):
                continue
            of_microbatch = not after[place] and self._is_of_microbatch(place)
            (self.writes if of_microbatch else self.once).append(place)
            if of_microbatch:
                for handle in self.handles[place]:
                    written.setdefault(handle, set()).add(op.name)
        for place, op in enumerate(self.ops):
            if op.type in READS and self._follows(place, written):
                self._running.add(place)

    def _follows(self, place: int, written: Mapping[str, set[str]]) -> bool:
        """Returns whether an op follows a write of a variable it uses; `written`: by variable."""
        before = {one.name for one in self.ops[place].control_inputs}
        return any(before & written.get(handle, set()) for handle in self.handles[place])

    def _is_of_microbatch(self, place: int) -> bool:
        """Returns whether an effect is a microbatch's unless it takes results of the update."""
        handles = self.handles[place]
        return (
            self.sample[place]
            or any(one in self._accumulators for one in handles)
            or (
                self._is_in_time(place)
                and (not handles or any(one in self.owner for one in handles))
            )
        )

    def _is_in_time(self, place: int) -> bool:
        """Returns whether an op was created before the gradients were complete."""
        return self._created[place] < self.recording.gradient_ops[1]

    def _after_update(self) -> list[bool]:
        """Returns, by place, whether an op takes averaged gradients or values the update wrote."""
        after: list[bool] = []
        updated: dict[str, set[str]] = {}
        for place, op in enumerate(self.ops):
            reads_new = op.type in READS and self._follows(place, updated)
            is_after = op.type == REDUCTION or any(after[i] for i in self.inputs(place))
            after.append(is_after or reads_new)
            if self.is_write[place] and (after[place] or not self._is_of_microbatch(place)):
                for handle in self.handles[place]:
                    updated.setdefault(handle, set()).add(op.name)
        return after

    def _leave_to_update(self, after: Sequence[bool]) -> None:
        """Metrics of what is known after the update add it up once, and count it once.

        Raises:
            ValueError: a metric is of samples, too.
        """
        late: set[str] = set()
        of_samples: set[str] = set()
        for place, is_write in enumerate(self.is_write):
            if is_write and (after[place] or self.sample[place]):
                names = late if after[place] else of_samples
                names |= {
                    _metric(self.variable_name(h))
                    for h in self._accumulators & set(self.handles[place])
                }
        for metric in late & of_samples:
            raise ValueError(
                f"{self.recording.name}: the metric {metric!r} adds up what depends on samples, and"
                " what was updated or averaged: make two metrics, each with a name of its own"
            )
        self._accumulators -= {
            one for one in self._accumulators if _metric(self.variable_name(one)) in late
        }

    def _mark_late(self) -> None:
        by_update: dict[str, set[str]] = {}
        for place in self.once:
            for handle in self.handles[place]:
                by_update.setdefault(handle, set()).add(self.ops[place].name)
        once, writes = set(self.once), set(self.writes)
        self.late = [False] * len(self.ops)
        for place, op in enumerate(self.ops):
            self.late[place] = (
                op.type == REDUCTION
                or (self._follows(place, by_update) and place not in writes)
                or any(self.late[i] for i in self.inputs(place))
                or place in once
            )

    def _check(self) -> None:
        for place in [*self.writes, *(self.place[one.op.name] for one in self.returned_samples)]:
            for before in self.closure([place]):
                if self.late[before]:
                    raise ValueError(
                        f"{self.recording.name}: {self.ops[before].name} uses samples, and what"
                        " was updated or averaged: stages update once, after all samples"
                    )
        samples = [place for place in self.closure(self.once) if self.sample[place]]
        if samples:  # one that writes takes samples itself, as an input at least
            last = max(place for place in samples if place not in self.once)
            write = next(one for one in self.once if last in self.closure([one]))
            raise ValueError(
                f"{self.recording.name}: {self.ops[write].name} is of the update, or comes after"
                f" it, and takes {self.ops[last].name}, which depends on samples: stages update"
                " once, after all samples"
            )

    @cached_property
    def gradients(self) -> dict[str, Any]:
        """The gradients before their reduction, by name of the op that reduces each."""
        return {op.name: op.inputs[0] for op in self.ops if op.type == REDUCTION}

    @cached_property
    def returned(self) -> tuple[Any, ...]:
        """The tensors that the step returns."""
        return tuple(self.recording.concrete.graph.outputs)

    @cached_property
    def returned_samples(self) -> tuple[Any, ...]:
        """The returned tensors that depend on samples or on what a microbatch has written."""
        return tuple(one for one in self.returned if self._is_returned_of_microbatch(one))

    def _is_returned_of_microbatch(self, tensor: Any) -> bool:
        place = self.place[tensor.op.name]
        of_microbatch = self.sample[place] or not self._running.isdisjoint(self.closure([place]))
        return of_microbatch and not self.late[place]

    def is_read_after_write(self, place: int) -> bool:
        """Returns whether an op reads a variable that every microbatch has written before."""
        return place in self._running

    def is_running(self, tensor: Any) -> bool:
        """Returns whether a tensor has its final value after the last microbatch, like a metric.

        Such a tensor depends on variables that every microbatch writes, and not on samples in any
        other way. A result that a metric computes from samples, too, counts as the metric's.
        """
        places = self.since_reads(tensor)
        read = {handle for place in places & self._running for handle in self.handles[place]}
        if read & self._accumulators:
            return True
        return bool(read) and not any(self._is_of_argument(place) for place in places)

    def _is_of_argument(self, place: int) -> bool:
        return self.sample[place] and self.ops[place].type == "Placeholder"

    def since_reads(self, tensor: Any) -> set[int]:
        """The ops from which it is computed, up to reads of what microbatches have written."""
        return self._closure([self.place[tensor.op.name]], self._running)

    def closure(self, places: Iterable[int]) -> set[int]:
        """The ops from which these are computed, and they; not beyond averaged gradients."""
        return self._closure(places, ())

    def _closure(self, places: Iterable[int], ends: Container[int]) -> set[int]:
        found: set[int] = set()
        waiting = list(places)
        while waiting:
            place = waiting.pop()
            if place in found:
                continue
            found.add(place)
            if self.ops[place].type != REDUCTION and place not in ends:
                waiting += self.inputs(place)
        return found

    @cached_property
    def needed(self) -> frozenset[int]:
        """The places of the ops that a microbatch has to compute."""
        sinks = [*self.writes]
        sinks += [self.place[one.op.name] for one in self.gradients.values()]
        sinks += [self.place[one.op.name] for one in self.returned_samples]
        return frozenset(self.closure(sinks))

    def owner_of(self, placeholder: str) -> int:
        """The region to which a variable belongs; the last one for what samples never meet."""
        return self.owner.get(placeholder, self.num_regions - 1)

    def handle_of(self, variable: Any) -> str | None:
        """The placeholder of a variable."""
        return self._placeholders.get(id(variable.handle))

    # Where no cut can be.

    @cached_property
    def joined(self) -> dict[tuple[int, int], str]:
        """Ranges of regions, ends included, that no cut may divide, and the op that says so."""
        found: dict[tuple[int, int], str] = {}
        touched: dict[str, list[int]] = {}
        for place in sorted(self.needed):
            op = self.ops[place]
            if not self.is_bound(place):
                continue
            region = self.region(place)
            for handle in self.handles[place]:
                touched.setdefault(handle, []).append(place)
            for one in op.inputs:
                producer = self.place[one.op.name]
                if one.dtype in (tf.variant, tf.resource) and self.is_bound(producer):
                    self._join(found, self.region(producer), region, op.name)
        for handle, places in touched.items():
            for place in places:
                self._join(found, self.owner_of(handle), self.region(place), self.ops[place].name)
        return found

    @staticmethod
    def _join(found: dict[tuple[int, int], str], one: int, other: int, name: str) -> None:
        if one != other:
            found.setdefault((min(one, other), max(one, other)), name)

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The layers between which a pipeline may be cut, in the order of forward computation.

        What has no trained variables is a part of the layer before it; but where branches count,
        not if it takes what other layers give.

        Raises:
            ValueError: an evaluation has others than the step that trains.
        """
        if self.recording.is_evaluation:
            return self._layers_of_training()
        sizes = [0] * self.num_regions
        for variable in self.recording.variables.values():
            handle = self.handle_of(variable)
            if handle is not None:
                sizes[self.owner_of(handle)] += variable.dtype.size * variable.shape.num_elements()
        fixed = {cut for start, stop in self.joined for cut in range(start + 1, stop + 1)}
        starts = [0]
        for region in range(1, self.num_regions):
            has_before = any(sizes[starts[-1] : region])
            begins = bool(sizes[region]) and has_before
            if self._has_branches:
                is_apart = min(self._sources[region], default=region) < starts[-1]
                begins = is_apart or (bool(sizes[region]) and (has_before or starts[-1] > 0))
            if region not in fixed and begins:
                starts.append(region)
        stops = [*starts[1:], self.num_regions]
        names = [*(one.name for one in self.recording.endings), "end"]
        layers = []
        for start, stop in zip(starts, stops, strict=True):
            largest = max(range(start, stop), key=lambda region: (sizes[region], -region))
            layers.append(Layer(names[largest], start, stop, sum(sizes[start:stop])))
        return tuple(layers)

    def _layers_of_training(self) -> tuple[Layer, ...]:
        assert self._trained is not None
        layers = self._trained.layers
        names, others = ([e.name for e in g.recording.endings] for g in (self, self._trained))
        starts = {layer.start for layer in layers}
        divided = [op for (a, b), op in self.joined.items() if starts & {*range(a + 1, b + 1)}]
        if names != others or divided:
            why = f"{divided[0]} uses in one layer what belongs to another" if divided else names
            raise ValueError(
                f"{self.recording.name} has other layers where it takes no gradient, {why}, than"
                f" where it trains, {others}: evaluate in a function of its own"
            )
        return layers

    @cached_property
    def _sources(self) -> list[set[int]]:
        """The regions that each region takes inputs from, by region."""
        found: list[set[int]] = [set() for _ in range(self.num_regions)]
        for place in self.needed:
            if self.is_bound(place):
                region = self.region(place)
                found[region] |= {
                    self.region(before)
                    for before in self.inputs(place)
                    if self.is_bound(before) and self.region(before) != region
                }
        return found

    def why_uncut(self) -> str:
        """Why there is only one layer."""
        if self.joined:
            (start, stop), name = max(self.joined.items(), key=lambda one: one[0][1] - one[0][0])
            del start, stop
            return f"{name} uses in one layer what belongs to another"
        if self.recording.endings_elsewhere:
            names = ", ".join(self.recording.endings_elsewhere[:3])
            return f"its layers ({names}) run in a tf.function, a loop or a condition of their own"
        if self.recording.endings:
            return "it has one layer with trained variables"
        return (
            "it has no layers of Keras' Sequential or functional models, and tf_libra.boundary is"
            " not called"
        )


def _metric(variable: str) -> str:
    """The metric that a variable is of, by the variable's name; itself, where that does not say."""
    return variable.rpartition("/")[0] or variable
