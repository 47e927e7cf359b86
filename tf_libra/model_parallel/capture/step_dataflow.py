"""Classification of the ops of a recorded step: part of a microbatch, or part of the update.

A step computes forward and backward, example by example, and then updates once. A microbatch
contains the ops that depend on examples, and the state that this computation advances, such as
random states. The update contains all ops that depend on averaged gradients, and all other writes
of the step.
"""

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import tensorflow as tf

from tf_libra.model_parallel.capture.recorded_step import REDUCTION, RecordedStep
from tf_libra.model_parallel.capture.traced_ops import CHECKS, LOOKUPS, READS, TracedOps

RANDOM = re.compile(r"Random|Multinomial|TruncatedNormal|ParameterizedTruncatedNormal")
"""Types of ops that draw random numbers."""

# These ops make an empty list, as the gradient of a loop makes one that the loop fills.
_EMPTY_LISTS = frozenset({"EmptyTensorList", "TensorListReserve"})


class StepDataflow(TracedOps):
    """Ops of a step with their dependencies on examples, microbatch state and the update.

    Attributes:
        is_per_example: by op, whether its outputs depend on examples and differ between replicas.
        is_recomputable: by op, whether every stage can compute it from arguments and constants.
        depends_on_update: by op, whether it depends on averaged gradients or on variables that the
            update has written.
        owner_region: by variable, the first region that uses it with examples.
        microbatch_effects: indices of the ops that have an effect in every microbatch.
        update_effects: indices of the ops that have an effect in the update.
        metric_variables: variables that every replica accumulates for itself.
        rank_local: see `__init__`.
    """

    def __init__(self, recording: RecordedStep, rank_local: frozenset[str] = frozenset()) -> None:
        """Classifies all ops of a trace.

        Args:
            recording: the trace.
            rank_local: variables that neither microbatches nor the update write, but every rank by
                itself.

        Raises:
            ValueError: an op of a microbatch depends on the update, or the other way round.
        """
        super().__init__(recording)
        replica_handles, sum_handles = recording.replica_handles(), recording.sum_handles()
        self.rank_local = rank_local
        # Variables, such as those of metrics, of which every replica has a value of its own.
        every = {name for name, outer in self.captures.items() if id(outer) in replica_handles}
        self._replica_variables = every - rank_local
        self._sum_variables = {
            name for name, outer in self.captures.items() if id(outer) in sum_handles
        }
        # Statistics of Keras 2 are no sums.
        self.metric_variables = frozenset(every & self._sum_variables)
        graph = recording.concrete.graph
        self._control_outputs = {op.name for op in graph.control_outputs}
        self._reads_after_write: set[int] = set()
        self._per_example_variables: set[str] = set()
        self.is_per_example: list[bool] = []
        self.is_recomputable: list[bool] = []
        self.owner_region: dict[str, int] = {}
        self.microbatch_effects: list[int] = []
        self.update_effects: list[int] = []
        self._propagate()
        self._classify_effects()
        self._propagate_through_variables()
        for index in self.microbatch_effects:
            for handle in self.handles[index]:
                self.owner_region.setdefault(handle, self.region(index))
        self.depends_on_update = self._find_update_dependents()
        self._check()

    # Public queries.

    def is_accumulator(self, placeholder: str) -> bool:
        """Returns whether the replicas' values of a variable are summed, as a metric's total."""
        return placeholder in self._replica_variables and placeholder in self._sum_variables

    def is_written_per_example(self, placeholder: str) -> bool:
        """Returns whether microbatches write a variable from the examples of their replica."""
        return placeholder in self._per_example_variables

    def is_pinned(self, index: int) -> bool:
        """Returns whether an op belongs to its own region, not to the regions of its inputs."""
        op = self.ops[index]
        if not self.is_forward(index) or op.type == "Placeholder" or self.is_recomputable[index]:
            return False
        if op.type in READS:
            return index in self._reads_after_write
        return self.is_per_example[index] or bool(op.op_def.is_stateful)

    def region_of_variable(self, placeholder: str) -> int:
        """Returns the region of a variable; the last one if examples never meet the variable."""
        return self.owner_region.get(placeholder, self.num_regions - 1)

    def is_read_after_write(self, index: int) -> bool:
        """Returns whether an op reads a variable that the same microbatch has written before."""
        return index in self._reads_after_write

    @cached_property
    def microbatch_outputs(self) -> tuple[Any, ...]:
        """Tensors that the step returns and every microbatch computes."""
        return tuple(tensor for tensor in self.outputs if self._is_microbatch_output(tensor))

    def _is_microbatch_output(self, tensor: Any) -> bool:
        index = self.op_index[tensor.op.name]
        if self.depends_on_update[index]:
            return False
        return self.is_per_example[index] or not self._reads_after_write.isdisjoint(
            self.closure([index])
        )

    def is_running_total(self, tensor: Any) -> bool:
        """Returns whether a tensor has its final value after the last microbatch, like a metric.

        Such a tensor depends on variables that every microbatch writes, and not on examples in any
        other way. A result that a metric also computes from examples counts as the metric's.
        """
        indices = self.closure_after_reads(tensor)
        read = {
            handle for index in indices & self._reads_after_write for handle in self.handles[index]
        }
        if read & self._replica_variables:
            return True
        return bool(read) and not any(
            self.is_per_example[index] and self.ops[index].type == "Placeholder"
            for index in indices
        )

    def closure_after_reads(self, tensor: Any) -> set[int]:
        """Returns the ops that compute a tensor, back to reads of what a microbatch has written."""
        return self.closure([self.op_index[tensor.op.name]], self._reads_after_write)

    @cached_property
    def microbatch_ops(self) -> frozenset[int]:
        """Indices of the ops that a microbatch has to compute."""
        sinks = [*self.microbatch_effects]
        for tensor in (*self.gradients.values(), *self.microbatch_outputs):
            sinks.append(self.op_index[tensor.op.name])
        return frozenset(self.closure(sinks))

    # Dependence on examples.

    def _propagate(self) -> None:
        """Finds the ops that depend on examples, and the region that owns each variable."""
        arguments = set(self.arguments)
        num_ops = len(self.ops)
        self.is_per_example, self.is_recomputable = [False] * num_ops, [False] * num_ops
        # By op, the variables from which a value without examples is computed.
        sources: list[frozenset[str]] = [frozenset()] * num_ops
        self.owner_region = {}
        for index, op in enumerate(self.ops):
            if op.type == "Placeholder":
                is_argument = op.name in arguments
                self.is_per_example[index] = is_argument and op.outputs[0].shape.rank != 0
                self.is_recomputable[index] = is_argument or op.outputs[0].dtype != tf.resource
                continue
            if op.type == REDUCTION:
                continue  # the update begins here
            inputs = self.input_indices(index)
            is_read = index in self._reads_after_write
            self.is_per_example[index] = any(self.is_per_example[i] for i in inputs) or (
                is_read and not self._per_example_variables.isdisjoint(self.handles[index])
            )
            self.is_recomputable[index] = (
                not op.op_def.is_stateful
                and all(self.is_recomputable[i] for i in inputs)
                and (
                    op.type in _EMPTY_LISTS
                    or not any(tensor.dtype in (tf.variant, tf.resource) for tensor in op.outputs)
                )
            )
            if (self.is_per_example[index] or is_read) and self.is_forward(index):
                region = min(self.region(index), self.num_regions - 1)
                for used in (self.handles[index], *(sources[i] for i in inputs)):
                    for handle in used:
                        if handle in self.rank_local:
                            continue
                        self.owner_region[handle] = min(
                            self.owner_region.get(handle, region), region
                        )
            if not self.is_per_example[index] and not self.is_recomputable[index]:
                sources[index] = frozenset(self.handles[index]).union(*(sources[i] for i in inputs))
        self._assign_related_variables(sources)

    def _assign_related_variables(self, sources: Sequence[frozenset[str]]) -> None:
        """Assigns to a layer the variables from which its variables are updated in a microbatch.

        An example is the vector of a power iteration that normalizes a weight: only the weight
        meets examples.

        Args:
            sources: by op, the variables from which it is computed.
        """
        for index in reversed(range(len(self.ops))):
            if not self.is_write[index] or not self.is_before_update(index):
                continue
            if not self.rank_local.isdisjoint(self.handles[index]):
                continue
            written = self.written_variables(index)
            taken = frozenset().union(*(sources[i] for i in self.input_indices(index)))
            keeps_old_value = self.ops[index].type != "AssignVariableOp" or taken >= written
            regions = [self.owner_region[name] for name in written if name in self.owner_region]
            if keeps_old_value and regions:
                for handle in taken | written:
                    region = self.owner_region.get(handle, self.num_regions)
                    self.owner_region[handle] = min(region, *regions)

    def _propagate_through_variables(self) -> None:
        """Repeats the propagation for reads of variables that a microbatch has written before.

        A random state or a counter does not depend on examples and is equal on all replicas. The
        variables of a metric differ between replicas.
        """
        before: set[str] | None = None
        while before != self._per_example_variables:
            before = set(self._per_example_variables)
            self._propagate()
            self._per_example_variables |= {
                handle
                for index in self.microbatch_effects
                for handle in self.written_variables(index)
                if self.is_per_example[index] or handle in self._replica_variables
            }
        self._move_late_checks_to_microbatch()

    def _move_late_checks_to_microbatch(self) -> None:
        """Lets microbatches check or print what they read of metrics, although it comes last."""
        is_after_update = self._find_ops_after_update()
        late = {
            index
            for index in self.update_effects
            if self.is_per_example[index] and not (self.handles[index] or is_after_update[index])
        }
        self.microbatch_effects = sorted(late.union(self.microbatch_effects))
        self.update_effects = [index for index in self.update_effects if index not in late]

    # Effects.

    def _classify_effects(self) -> None:
        """Assigns effects to microbatches or the update; finds reads after microbatch writes."""
        is_after_update = self._find_ops_after_update()
        self._move_late_metrics_to_update(is_after_update)
        self.microbatch_effects, self.update_effects = [], []
        writes: dict[str, set[str]] = {}
        is_rank_local = self._find_rank_local_checks()
        for index, op in enumerate(self.ops):
            if is_rank_local[index] or not self.rank_local.isdisjoint(self.handles[index]):
                continue
            if op.type == REDUCTION or op.name not in self._control_outputs:
                if not self.is_write[index]:
                    continue
            elif op.type in READS | LOOKUPS or (RANDOM.search(op.type) and not op.control_inputs):
                continue
            if is_after_update[index] or not self._is_microbatch_effect(index):
                self.update_effects.append(index)
                continue
            self.microbatch_effects.append(index)
            for handle in self.handles[index]:
                writes.setdefault(handle, set()).add(op.name)
        for index, op in enumerate(self.ops):
            if op.type in READS and self.follows_write(index, writes):
                self._reads_after_write.add(index)

    def _find_rank_local_checks(self) -> list[bool]:
        """Returns, by op, whether it checks what is computed from rank-local variables."""
        accesses = {
            index
            for index, handles in enumerate(self.handles)
            if not self.rank_local.isdisjoint(handles)
        }
        uses = self.find_dependents(accesses)
        return [used and op.type in CHECKS for op, used in zip(self.ops, uses, strict=True)]

    def _is_microbatch_effect(self, index: int) -> bool:
        """Returns whether an effect is a microbatch's, unless it takes results of the update."""
        handles = self.handles[index]
        if self.is_per_example[index] or not self._replica_variables.isdisjoint(handles):
            return True
        return self.is_before_update(index) and (
            not handles or any(handle in self.owner_region for handle in handles)
        )

    def _find_ops_after_update(self) -> list[bool]:
        """Returns, by op, whether it takes averaged gradients or values that the update wrote."""
        is_after: list[bool] = []
        writes: dict[str, set[str]] = {}
        for index, op in enumerate(self.ops):
            is_after.append(
                op.type == REDUCTION
                or any(is_after[i] for i in self.input_indices(index))
                or (op.type in READS and self.follows_write(index, writes))
            )
            if self.is_write[index] and (is_after[index] or not self._is_microbatch_effect(index)):
                for handle in self.handles[index]:
                    writes.setdefault(handle, set()).add(op.name)
        return is_after

    def _move_late_metrics_to_update(self, is_after_update: Sequence[bool]) -> None:
        """Lets the update write metrics of values that are known only then, once per step.

        Raises:
            ValueError: the same metric also accumulates examples.
        """
        late: set[str] = set()
        per_example: set[str] = set()
        for index, is_write in enumerate(self.is_write):
            if is_write and (is_after_update[index] or self.is_per_example[index]):
                metrics = late if is_after_update[index] else per_example
                metrics |= {
                    _metric_of(self.variable_name(handle))
                    for handle in self._replica_variables.intersection(self.handles[index])
                }
        for metric in late & per_example:
            raise ValueError(
                f"{self.recording.name}: metric {metric!r} accumulates both examples and results"
                " of the update; use two metrics with different names"
            )
        self._replica_variables = {
            handle
            for handle in self._replica_variables
            if _metric_of(self.variable_name(handle)) not in late
        }

    def _find_update_dependents(self) -> list[bool]:
        """Returns, by op, whether it depends on averaged gradients or on effects of the update."""
        writes: dict[str, set[str]] = {}
        for index in self.update_effects:
            for handle in self.handles[index]:
                writes.setdefault(handle, set()).add(self.ops[index].name)
        update, microbatch = set(self.update_effects), set(self.microbatch_effects)
        dependents: list[bool] = []
        for index, op in enumerate(self.ops):
            dependents.append(
                op.type == REDUCTION
                or (self.follows_write(index, writes) and index not in microbatch)
                or any(dependents[i] for i in self.input_indices(index))
                or index in update
            )
        return dependents

    def _check(self) -> None:
        name = self.recording.name
        outputs = [self.op_index[tensor.op.name] for tensor in self.microbatch_outputs]
        for index in [*self.microbatch_effects, *outputs]:
            for source in self.closure([index]):
                if self.depends_on_update[source]:
                    raise ValueError(
                        f"{name}: {self.ops[source].name} depends both on examples and on results"
                        " of the update; stages update once, after all examples"
                    )
        per_example = [i for i in self.closure(self.update_effects) if self.is_per_example[i]]
        if per_example:  # an effect that is per example itself takes such an input
            source = max(index for index in per_example if index not in self.update_effects)
            effect = next(i for i in self.update_effects if source in self.closure([i]))
            raise ValueError(
                f"{name}: {self.ops[effect].name} belongs to the update or follows it, and takes"
                f" {self.ops[source].name}, which depends on examples; stages update once, after"
                " all examples"
            )


def _metric_of(variable: str) -> str:
    """Returns the name of the metric of a variable, or the variable's name if it tells none."""
    return variable.rpartition("/")[0] or variable
