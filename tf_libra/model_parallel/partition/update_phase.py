"""Assignment of the update to stages, once all gradients are complete.

A stage computes all that depends only on its own gradients and variables. Every rank computes what
depends on several stages, such as a global norm or a check that all gradients are finite: the
inputs of such ops are exchanged.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tensorflow as tf

from tf_libra.model_parallel.capture.recorded_step import REDUCTION
from tf_libra.model_parallel.partition.stage_partition import StagePartition
from tf_libra.model_parallel.partition.subgraph import Subgraph, gathered


@dataclass(frozen=True)
class Exchanged:
    """A tensor of one stage that all others need.

    Attributes:
        tensor: its name in the trace.
        source: the stage that computes it.
        round: before which round of computation it has to be there; the first is 0, and has none.
    """

    tensor: str
    source: int
    round: int


class Update:
    """The update of a step that is cut into stages.

    Attributes:
        exchanged: what stages tell each other.
        returned: names of the tensors which the step returns and the update computes, with the
            stage that does; None: every stage.
    """

    def __init__(self, cut: StagePartition) -> None:
        """Finds out what is whose.

        Raises:
            ValueError: an op writes to variables of several stages, or takes what is not there yet.
        """
        self._cut = cut
        self._graph = cut.graph
        late = [one for one in self._graph.outputs if not any(one is s for s in self._samples)]
        self._sinks = [self._graph.op_index[one.op.name] for one in late]
        self._closure = self._graph.closure([*self._graph.update_effects, *self._sinks])
        for place in self._closure:
            if self._graph.is_per_example[place]:
                raise ValueError(
                    f"{self._graph.recording.name}: {self._graph.ops[place].name} depends on"
                    " samples, and something that the update computes depends on it: stages"
                    " update once, after all samples"
                )
        self._stages = self._owners()
        self.exchanged = self._exchanged()
        self.returned = {one.name: self._where[self._graph.op_index[one.op.name]] for one in late}

    @property
    def _samples(self) -> tuple[Any, ...]:
        return self._graph.microbatch_outputs

    @property
    def num_rounds(self) -> int:
        """Rounds of computation, each with an exchange before it but the first."""
        return 1 + max((one.round for one in self.exchanged), default=0)

    def _owners(self) -> dict[str, int]:
        """Returns the stage of each variable, without the variables that belong to no stage."""
        everyones = self._numbers()
        while True:
            known = self._spread(everyones)
            if everyones.isdisjoint(known):
                return known
            everyones -= known.keys()

    def _numbers(self) -> set[str]:
        """Numbers that layers only read, and the update writes, as the scale of a loss.

        Every rank can keep them up to date by itself, unless it takes one stage's tensors for that.
        """
        graph = self._graph
        trained = {graph.placeholder_of(one) for one in graph.recording.variables.values()}
        moved = {handle for place in graph.microbatch_effects for handle in graph.handles[place]}
        updated = {handle for place in graph.update_effects for handle in graph.handles[place]}
        every = graph.recording.concrete.graph.variables
        numbers = {graph.placeholder_of(one) for one in every if one.shape.rank == 0}
        return (updated & graph.owner_region.keys() & numbers) - trained - moved

    def _spread(self, everyones: Collection[str]) -> dict[str, int]:
        """The same where these variables are of no layer."""
        graph = self._graph
        known = {
            name: self._cut.stage_of_variable(name)
            for name in graph.owner_region
            if name not in everyones
        }
        self._where: dict[int, int | None] = {}
        before = -1
        while len(known) > before:
            before = len(known)
            for place in sorted(self._closure):
                op = graph.ops[place]
                if op.type == REDUCTION:
                    self._where[place] = self._cut.stage_of_gradient(op.name)
                    continue
                given = {self._where[i] for i in graph.input_indices(place)} - {None}
                touched = {known[h] for h in graph.handles[place] if h in known}
                where = self._where[place] = self._stage_of(place, given, touched)
                if graph.is_write[place] and where is not None:
                    for handle in graph.handles[place]:
                        if known.setdefault(handle, where) != where:
                            raise self._of_several(place, handle)
        return known

    def _stage_of(self, place: int, given: set[Any], touched: set[int]) -> int | None:
        everything = given | touched
        if touched and len(everything) > 1:
            raise self._of_several(place, self._graph.handles[place][0])
        return everything.pop() if len(everything) == 1 else None

    def _of_several(self, place: int, handle: str) -> ValueError:
        return ValueError(
            f"{self._graph.recording.name}: {self._graph.ops[place].name} updates"
            f" {self._graph.variable_name(handle)!r} together with what belongs to other stages:"
            " each stage updates by itself, under a condition, too, if that has no other effect and"
            " returns tensors of known shapes"
        )

    def _exchanged(self) -> tuple[Exchanged, ...]:
        graph = self._graph
        rounds: dict[int, int] = {}
        found: dict[str, Exchanged] = {}
        for place in sorted(self._closure):
            if graph.ops[place].type == REDUCTION:
                rounds[place] = 0
                continue
            after = 0
            for one in graph.ops[place].inputs:
                producer = graph.op_index[one.op.name]
                source = self._where[producer]
                level = rounds[producer]
                if self._where[place] is None and source is not None:
                    level += 1
                    found[one.name] = Exchanged(one.name, source, level)
                    self._check(one)
                after = max(after, level)
            rounds[place] = after
        return tuple(found.values())

    def _check(self, tensor: Any) -> None:
        name = self._graph.recording.name
        if not tensor.shape.is_fully_defined() or tensor.dtype in (tf.resource, tf.variant):
            raise ValueError(
                f"{name}: {tensor.op.name} would have to be sent from one stage to the others, and"
                f" it is a {tensor.dtype.name} of shape {tensor.shape}"
            )
        names = {self._graph.ops[place].name for place in self._graph.update_effects}
        for place in self._graph.closure([self._graph.op_index[tensor.op.name]]):
            before = {one.name for one in self._graph.ops[place].control_inputs}
            if before & names and self._graph.ops[place].type == "ReadVariableOp":
                variable = self._graph.variable_name(self._graph.handles[place][0])
                raise ValueError(
                    f"{name}: {tensor.op.name} takes {variable!r} to other stages when it has been"
                    " updated, and they exchange nothing after that: compute what is of several"
                    " stages, such as the norm of all weights, before apply_gradients, or after"
                    " the step, once variables are synchronized"
                )

    def part(self, stages: Collection[int], number: int) -> Subgraph:
        """Returns the ops of a rank with these stages in one round; the last round updates."""
        own = {None, *stages}
        if number == self.num_rounds - 1:
            writes = [place for place in self._graph.update_effects if self._where[place] in own]
            gives = [name for name, where in self.returned.items() if where in own]
            return self._made(stages, number, writes, gives)
        gives = [
            one.tensor for one in self.exchanged if one.source in stages and one.round == number + 1
        ]
        return self._made(stages, number, (), gives)

    def _made(
        self, stages: Collection[int], number: int, writes: Iterable[int], gives: list[str]
    ) -> Subgraph:
        there = {one.tensor for one in self.exchanged if one.round <= number}
        there -= {one.tensor for one in self.exchanged if one.source in stages}

        def is_given(one: Any, _: int) -> bool:
            return one.op.type == REDUCTION or one.name in there

        wanted = (self._cut.tensor(name) for name in gives)
        return gathered(self._graph, writes, wanted, is_given).part(self._graph, gives)

    @cached_property
    def variables(self) -> dict[str, int]:
        """The stage that updates each variable, by placeholder; every rank updates the others."""
        return self._stages
