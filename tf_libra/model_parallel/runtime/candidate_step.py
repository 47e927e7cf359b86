"""Model-parallel training function that is tried against data parallelism.

Before it is tried, it says whether it computes the same, and measures the layers for predictions.
If it cannot prepare a step on one rank, or a computation fails in a trial or in a first run, it
fails on all of them, and they go on without it.
"""

import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_libra.capture.finite_check import VariableSnapshot
from tf_libra.coordination import current_job
from tf_libra.coordination.control_plane import Control
from tf_libra.model_parallel.capture import batch_axes, step_arguments
from tf_libra.model_parallel.capture.joint_batch import (
    find_differences,
    find_least_precise_dtype,
)
from tf_libra.model_parallel.capture.joint_memory import find_shortage
from tf_libra.model_parallel.capture.sparse_updates import find_use_of_rows
from tf_libra.model_parallel.execution.step_executor import StepExecutor
from tf_libra.model_parallel.execution.transport import LanesTransport
from tf_libra.model_parallel.partition.guarded_calls import guarded_calls
from tf_libra.model_parallel.partition.sized_traces import SizedTraces
from tf_libra.model_parallel.profiling import layer_benchmark, link_benchmark
from tf_libra.model_parallel.runtime.agreement import AgreeingControl
from tf_libra.model_parallel.runtime.planner_protocol import (
    StagedPlan,
    reject_tensorflow_strategies,
)
from tf_libra.model_parallel.runtime.staged_step import Prepared, StagedTraining
from tf_libra.runtime.protocol import (
    NOTHING_ACCEPTED,
    AcceptedDifferences,
    CandidateStep,
    TrialError,
)
from tf_libra.runtime.step_hooks import around_wait
from tf_libra.specs.layer_graph import LayerGraph
from tf_libra.variable_sync.bound_variables import BoundVariable
from tf_libra.variable_sync.variable_access import variable_access


class CandidateTraining(StagedTraining):
    """See `CandidateStep`. It is a `StagedTraining` unless `is_tried`."""

    computation = ""
    accepted = NOTHING_ACCEPTED
    exceeds_memory = False
    use_of_rows: str | None = None
    least_precise_dtype = tf.float32
    is_undoable = False
    undo_seconds = 0.0
    _is_agreeing = _is_tried = False

    def _forget(self) -> None:
        """See `StagedTraining`."""
        super()._forget()
        self._is_outdated = False  # the planner, whose layers have been measured
        self._proven: weakref.WeakSet[StepExecutor] = weakref.WeakSet()  # have run a step
        self._reporter.is_trial = self._is_tried

    @property
    def is_tried(self) -> bool:
        """See `CandidateStep`."""
        return self._is_tried

    @is_tried.setter
    def is_tried(self, value: bool) -> None:
        self._is_tried = self._reporter.is_trial = value

    @property
    def plan(self) -> StagedPlan | None:
        """See `StagedTraining`; None until an outdated plan is made again, too."""
        return None if self._is_outdated else super().plan

    @property
    def predicted_seconds(self) -> float | None:
        """See `CandidateStep`."""
        return None if self._is_outdated else self._planner.predicted_seconds

    @property
    def link_share(self) -> float:
        """See `CandidateStep`."""
        return self._planner.link_share

    def plan_again(self, with_layers: bool) -> None:
        """See `CandidateStep`."""
        link_benchmark.forget_links()
        self._has_run_plan = False  # ranks agree when they prepare the next step
        if with_layers:
            self._is_outdated = bool(self._traces)
        else:
            self._planner.replan()

    # Before it is tried.

    @property
    def bound_variables(self) -> dict[int, BoundVariable]:
        """See `CandidateStep`."""
        every = (*self._traces.values(), *self._traced_ahead.values())
        return {key: variable for traces in every for key, variable in traces.variables.items()}

    def share_traces(self, other: CandidateStep) -> None:
        """See `CandidateStep`."""
        has_rows = other.use_of_rows is not None  # which only one rank applies
        if isinstance(other, CandidateTraining) and (other is self or not has_rows):
            self._recorder = other._recorder

    def rejects(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        num_ranks: int,
        allow: Sequence[str] = (),
    ) -> str | None:
        """See `CandidateStep`. The trace is used for the first step."""
        try:
            reject_tensorflow_strategies(self._name, self._planner, current_job.get_job())
            arguments = step_arguments.convert_arguments(self._name, (args, kwargs))
            samples = step_arguments.batch_size(self._name, arguments)
            self._planner.check_batch(samples, num_ranks)
            size = samples * num_ranks // self._planner.num_microbatches
            traces = self._trace(arguments, samples, size, num_ranks)
            self._planner.check_traces(traces)
        except ValueError as error:
            return str(error)
        self._traced_ahead = {step_arguments.trace_key(arguments): traces}
        graph = traces.microbatch_graph
        self.computation = batch_axes.computation_digest(graph)
        self.least_precise_dtype = find_least_precise_dtype(graph)
        found = find_differences(graph, traces.other_graph, allow)
        self.accepted = AcceptedDifferences(traces.variable_keys(found.variables), found.results)
        if graph.recording.has_rows:
            self.use_of_rows = find_use_of_rows(graph) or ""
        shortage = find_shortage(graph)
        self.exceeds_memory = shortage is not None
        return found.reason or shortage

    def measure_layers(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        num_ranks: int,
        repeats: int,
        is_joint: bool,
    ) -> tuple[LayerGraph, int]:
        """See `CandidateStep`."""
        arguments = step_arguments.convert_arguments(self._name, (args, kwargs))
        key, samples = (
            step_arguments.trace_key(arguments),
            step_arguments.batch_size(self._name, arguments),
        )
        if not is_joint:
            self._traced_ahead.pop(key, None)  # of the joint batch
        size = samples * num_ranks if is_joint else samples
        traces = self._trace(arguments, samples, size, num_ranks)
        if is_joint:
            self._traced_ahead = {key: traces}
        if traces.microbatch_graph.recording.has_rows:
            raise ValueError("gradients are sparse, and stages need dense ones")
        if len(traces.microbatch_graph.layers) == 1:
            raise ValueError(
                f"the step cannot be cut: {traces.microbatch_graph.explain_single_layer()}"
            )
        layers = layer_benchmark.measured_layers(traces, arguments, 1, repeats, defers=True)
        layers = layer_benchmark.with_exchanges(layers, traces)
        if not is_joint:
            layers = layers.with_batch(num_ranks, num_ranks)
        return layers, samples * num_ranks

    def _trace(self, arguments: Any, samples: int, size: int, num_ranks: int) -> SizedTraces:
        """See `StagedTraining`. A step in trials may read rows of sparse gradients.

        Trials leave stages out unless it uses them as their dense sum alone.
        """
        try:
            return super()._trace(arguments, samples, size, num_ranks)
        except AttributeError:
            if not self._is_tried or self._planner.joins_rows:
                raise
            self._recorder.return_rows()
            return super()._trace(arguments, samples, size, num_ranks)

    # Steps.

    def _prepare_together(self, convert: Callable[[], Any]) -> Prepared:
        """See `StagedTraining`. Ranks need not agree in steps that are like those before.

        In trials, and after them, the caller has compared their arguments.
        """
        control = self._control
        if not isinstance(control, AgreeingControl):
            return super()._prepare_together(convert)
        try:
            arguments = convert()
            is_known = self._has_run_plan and step_arguments.trace_key(arguments) in self._traces
        except ValueError:
            is_known = False  # on all ranks, which pass arguments of the same kind
        if is_known:
            return self._prepare(arguments)
        self._is_agreeing = True
        try:
            return control.together(lambda: self._prepare(convert()))
        finally:
            self._is_agreeing = False

    def _execute(
        self, traces: SizedTraces, execution: StepExecutor, arguments: list[Any]
    ) -> list[Any]:
        """See `StagedTraining`. The first run of an execution is undone if it fails on a rank."""
        control, self.undo_seconds = self._control, 0.0
        can_go_on = self.is_undoable or execution not in self._proven
        if not isinstance(control, AgreeingControl) or not can_go_on:
            return super()._execute(traces, execution, arguments)
        began = time.perf_counter()
        with variable_access().unobserved():
            bound = [variable for variable in self._bound.values() if variable.is_variable]
            before = control.together(lambda: VariableSnapshot(bound, copies=True))
        start = time.perf_counter()
        with guarded_calls() as guard:
            flat = super()._execute(traces, execution, arguments)
        stop = time.perf_counter()
        try:
            control.together(guard.check)
        except TrialError:
            with variable_access().unobserved():
                before.restore()
            # What another thread has read meanwhile does not count.
            self._holding.mark_stale()
            raise
        self._proven.add(execution)
        self.undo_seconds = (start - began) + (time.perf_counter() - stop)
        return flat

    def _prepare(self, arguments: Any) -> Prepared:
        """See `StagedTraining`. An outdated planner waits for the first arguments."""
        if self._is_outdated and step_arguments.trace_key(arguments) == next(iter(self._traces)):
            self._agree_so_far()
            self._begin_again(arguments)
        return super()._prepare(arguments)

    def _begin_again(self, arguments: Any) -> None:
        """Replace the planner by one that measures again; all ranks call this."""
        first, control = self._first, self._control
        planner = self._make_planner(None)
        planner.check_batch(first.examples_per_rank, control.world_size)
        if planner.num_microbatches != self._planner.num_microbatches:  # those of a given plan
            planner = self._make_planner()
            planner.check_batch(first.examples_per_rank, control.world_size)
        self._holding.synchronize_with_others(first.variables, self._together)  # it measures layers
        transport = LanesTransport(control.rank, self._identity, around_wait)
        planner.begin(first, arguments, control, transport, self._reporter)
        self._planner, self._is_outdated = planner, False

    def _agree_so_far(self) -> None:
        """Raise `TrialError` if a rank has failed."""
        if self._is_agreeing:
            self._control.all_gather(None)

    def _together(self, call: Callable[[], None]) -> None:
        """See `StagedTraining`. It fails on all ranks if it does on one."""
        control = self._control
        if isinstance(control, AgreeingControl):
            control.together(call)
        else:
            call()

    @property
    def _may_be_undone(self) -> bool:
        """See `StagedTraining`: steps of trials, and the first run of an execution."""
        return self._is_tried

    @property
    def _control(self) -> Control:
        control = super()._control
        return AgreeingControl(control) if self.is_tried else control
