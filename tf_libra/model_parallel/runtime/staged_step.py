"""Model-parallel training function, as the user's script calls it."""

import weakref
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, NamedTuple

from tf_libra import config
from tf_libra.autotune import Phase
from tf_libra.capture import instrumented_function
from tf_libra.capture.gradient_interception import check_call_context, reject_eager_functions
from tf_libra.coordination.consistency_check import NAMES_ADVICE, agree, check_equal, exchange
from tf_libra.coordination.control_plane import Control
from tf_libra.coordination.signal_handling import step_interrupts
from tf_libra.model_parallel.capture import batch_axes, step_arguments
from tf_libra.model_parallel.capture.step_recorder import StepRecorder
from tf_libra.model_parallel.execution.executors import make_executor
from tf_libra.model_parallel.execution.metrics import warn_of_averages
from tf_libra.model_parallel.execution.owned_variables import (
    check_same_stages,
    find_owned_variables,
)
from tf_libra.model_parallel.execution.stage_variables import StageVariables
from tf_libra.model_parallel.execution.step_executor import StepExecutor
from tf_libra.model_parallel.execution.transport import LanesTransport
from tf_libra.model_parallel.partition.batch_sharding import BatchShards
from tf_libra.model_parallel.partition.layout import Layout
from tf_libra.model_parallel.partition.own_results import OwnResults, share_own_results
from tf_libra.model_parallel.partition.sized_traces import SizedTraces
from tf_libra.model_parallel.partition.update_phase import UpdatePhase
from tf_libra.model_parallel.runtime.agreement import check_same_trace
from tf_libra.model_parallel.runtime.planner_protocol import (
    Planner,
    StagedPlan,
    reject_tensorflow_strategies,
)
from tf_libra.reporting.records.record_types import Record
from tf_libra.reporting.run_reporter import RunReporter
from tf_libra.runtime import fingerprint
from tf_libra.runtime.protocol import TrialError, TuningState
from tf_libra.runtime.rendezvous import Rendezvous
from tf_libra.runtime.step_hooks import around_wait
from tf_libra.variable_sync import elastic_hooks as commits
from tf_libra.variable_sync.bound_variables import BoundVariable


class Prepared(NamedTuple):
    """A step that is ready to run.

    Attributes:
        traces: traces for its arguments.
        execution: execution under the current layout.
        arguments: tensors that this rank passes, in the order of the trace's inputs.
    """

    traces: SizedTraces
    execution: StepExecutor
    arguments: list[Any]


class StagedTraining:
    """Decorated function of this process whose layers are divided among ranks.

    Attributes:
        is_method: True if the first argument of each step is the object of a method.
        runs_several: False: ranks run one step at a time.
        error_feedback: None: nothing is rounded between ranks.
        step_number: number of the last step, which messages name.
    """

    runs_several = False

    def __init__(
        self,
        function: Callable[..., Any],
        make_planner: Callable[..., Planner],
        options: config.Options,
        release_variables: bool = False,
    ) -> None:
        """Prepare the function; tracing and planning begin with the first step.

        Args:
            function: a `tf.function` or a plain function.
            make_planner: returns a new planner for every job that this process joins. Given None,
                the planner makes a plan of its own even if the options have one.
            options: the user's other options.
            release_variables: free the memory of variables that only other ranks update.

        Raises:
            ValueError: the planner cannot satisfy the request, or the function is compiled by XLA.
        """
        self._function = function
        self._make_planner = make_planner
        self._options = options
        self._releases_variables = release_variables
        self._name = instrumented_function.step_name(function)
        self._identity = fingerprint.function_identity(self._name)
        self._plain = instrumented_function.as_tf_function(function)
        self._rendezvous = Rendezvous(self._name, self._identity, options)
        self.is_method = False
        self.error_feedback = None
        self._forget()

    def _forget(self) -> None:
        """Reset all state of the job: planner, traces and executions."""
        self._planner = self._make_planner()
        self._reporter = RunReporter(self._options)
        joins_rows = self._planner.joins_rows and not self._options.sparse_as_dense
        self._recorder = StepRecorder(self._function, joins_rows)
        self._traces: dict[tuple[Hashable, ...], SizedTraces] = {}
        self._traced_ahead: dict[tuple[Hashable, ...], SizedTraces] = {}
        self._executions: dict[tuple[Hashable, ...], StepExecutor] = {}  # under the current layout
        self._own_results = weakref.WeakKeyDictionary[SizedTraces, OwnResults]()
        self._layout: Layout | None = None
        self._current: StepExecutor | None = None
        self._holding = StageVariables(self._identity, self)
        self._bound: dict[int, BoundVariable] = {}  # variables of all traces by key
        self.step_number = 0
        self._has_run = self._has_run_plan = False
        self._warned: set[tuple[str, ...]] = set()

    # The user's interface.

    @property
    def plan(self) -> StagedPlan | None:
        """Active plan; None before it is made."""
        return self._planner.plan

    @property
    def state(self) -> TuningState:
        """Phase of tuning."""
        if self._rendezvous.is_alone:
            return TuningState(Phase.PASS_THROUGH)
        if self.plan is not None:
            return TuningState(Phase.RUN)
        return TuningState(Phase.MEASURE if self._executions else Phase.TRACE)

    @property
    def settled(self) -> bool:
        """True once all measurements for planning are complete."""
        return self._rendezvous.is_alone or self.plan is not None

    def explain(self) -> str:
        """Return the state of planning as text of at most 100 columns."""
        if self.plan is None or self._current is None:
            return f"{self._name}: nothing is planned yet"
        return self._planner.explained(self._name, self._current)

    def record(self, make_record: Callable[[str, int], Record]) -> None:
        """Write a record, made from the function's name and the rank, to the log directory."""
        self._reporter.record(make_record)

    def close(self) -> None:
        """Stop reporting."""
        self._reporter.close()

    def check_variables(self) -> None:
        """Raise `ValueError`: variables differ between ranks by design."""
        raise ValueError(
            f"{self._name} runs in stages, and ranks update their own stages' variables only:"
            " call synchronize_variables()"
        )

    def synchronize_variables(self) -> None:
        """Synchronize the variables of all stages on every rank; all ranks call this."""
        if self._rendezvous.control is None or self._rendezvous.is_over or not self._has_run:
            return  # no other rank has newer variables
        self._guarded(self._synchronize_where_all_are)

    def _synchronize_where_all_are(self) -> None:
        self._rendezvous.check_sync_point("synchronize_variables")
        self._synchronize()

    def _synchronize(self) -> None:
        self._holding.synchronize(self._bound, self._together)

    # Steps.

    def step(self, args: tuple[Any, ...], kwargs: dict[str, Any], num_steps: int = 1) -> Any:
        """Run one training step.

        Raises:
            ValueError: an argument or option is invalid, or the step cannot run in stages.
            HorovodInternalError: a rank is gone, late or has aborted; the step is incomplete.
            EngineError, tf.errors.OpError: the same call would fail again.
        """
        if num_steps != 1:
            raise ValueError(f"{self._name} runs in stages, one step at a time, got {num_steps}")
        if self._rendezvous.is_over:
            self._rendezvous.end()
            self._reporter.close()
            self._forget()
        self._rendezvous.check()
        if self._rendezvous.is_alone:
            return instrumented_function.call_plain(self._plain, self.is_method, args, kwargs)
        check_call_context(self._name, ": stages are driven from Python")
        return self._guarded(partial(self._synchronous_step, args, kwargs))

    def _guarded(self, call: Callable[[], Any]) -> Any:
        """Run a call and report its failure to the other ranks, which would wait otherwise."""
        try:
            return step_interrupts().during(call)
        except BaseException as error:
            self._reporter.on_idle()
            if isinstance(error, TrialError):
                raise  # on all ranks
            self._rendezvous.abort(error, error)
            raise

    def _synchronous_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._rendezvous.control is None:
            self._rendezvous.join(self._reporter)
            if self._rendezvous.is_alone:
                return instrumented_function.call_plain(self._plain, self.is_method, args, kwargs)
            reject_tensorflow_strategies(self._name, self._planner, self._rendezvous.job)
            agree(self._control, {"strategy": self._planner.requested})
        self.step_number += 1
        self._control.set_step(self.step_number)
        reject_eager_functions(self._name)
        convert = partial(step_arguments.convert_arguments, self._name, (args, kwargs))
        traces, execution, arguments = self._prepare_together(convert)
        if not traces.microbatch_graph.recording.is_evaluation:
            self._current = execution
        commits.begin_step(self._control)
        flat = self._execute(traces, execution, arguments)
        self._holding.mark_stale()
        self._has_run, self._has_run_plan = True, self.plan is not None
        self._control.end_step(self.step_number)
        return traces.microbatch_graph.recording.concrete.function_type.pack_output(flat)

    def _execute(
        self, traces: SizedTraces, execution: StepExecutor, arguments: list[Any]
    ) -> list[Any]:
        """Run a prepared step; all ranks call this."""
        self._holding.begin_step(self._control.rank, traces.variables, self._releases_variables)
        return list(self._planner.during(traces, execution, partial(execution.step, arguments)))

    def _prepare_together(self, convert: Callable[[], Any]) -> Prepared:
        """Prepare a step with the arguments that `convert` returns; all ranks call this."""
        arguments = convert()
        check_same_trace(self._control, [*self._traces], arguments)
        return self._prepare(arguments)

    def _agree_so_far(self) -> None:
        """Come here before tensors are exchanged to prepare a step; all ranks call this."""

    def _together(self, call: Callable[[], None]) -> None:
        """Make a call that may fail on this rank alone; all ranks call this."""
        call()

    @property
    def _may_be_undone(self) -> bool:
        """True if a step that fails on one rank is undone on all of them."""
        return False

    def _prepare(self, arguments: Any) -> Prepared:
        """Return what runs a step with these arguments; all ranks call this."""
        key = step_arguments.trace_key(arguments)
        if key not in self._traces:
            self._traces[key] = self._trace_new_arguments(arguments)
        else:
            self._agree_so_far()
            self._holding.synchronize_with_others(self._traces[key].variables, self._together)
        layout = self._planner.next_layout()
        fitting = layout.for_batch(self._traces[key].examples_per_rank)
        # A batch with other replica groups has its variables on other ranks as well.
        self._use(layout if fitting.replica_groups == layout.replica_groups else fitting)
        if key not in self._executions:
            self._executions[key] = self._execution(self._traces[key])
        traces, leaves = self._traces[key], step_arguments.flatten_tensors(arguments)
        inputs = [leaves[index] for index in traces.input_order]
        return Prepared(traces, self._executions[key], inputs)

    @property
    def _control(self) -> Control:
        assert self._rendezvous.control is not None
        return self._rendezvous.control

    # First step with arguments of another kind.

    def _trace(self, arguments: Any, samples: int, size: int, num_ranks: int) -> SizedTraces:
        ahead = self._traced_ahead.pop(step_arguments.trace_key(arguments), None)
        if ahead is not None and ahead.microbatch_size == size:
            return ahead
        traces = SizedTraces(
            self._recorder,
            arguments,
            samples,
            size,
            num_ranks=num_ranks,
            has_branches=self._planner.has_branches,
            trained=self._first.microbatch_graph if self._traces else None,
        )
        if self._planner.shares_own_results:
            self._own_results[traces] = share_own_results(traces)
        return traces

    def _trace_new_arguments(self, arguments: Any) -> SizedTraces:
        """Trace the step for arguments of another kind; the planner plans for the first kind."""
        control = self._control
        is_first = not self._traces
        if not is_first:
            self._agree_so_far()
            self._rendezvous.check_sync_point("arguments of another kind")
            if self._holding.has_released:  # the new trace may need released variables
                self._synchronize()
        agree(control, {"arguments": step_arguments.signature(arguments)})
        samples = step_arguments.batch_size(self._name, arguments)
        if is_first:
            self._planner.check_batch(samples, control.world_size)
            count = self._planner.num_microbatches
        else:
            layout = self._planner.next_layout()
            count = layout.for_batch(samples).num_microbatches
        size = samples * control.world_size // count
        traces = self._trace(arguments, samples, size, control.world_size)
        computation = {"computation": batch_axes.computation_digest(traces.microbatch_graph)}
        check_equal(exchange(control, computation), NAMES_ADVICE)
        self._holding.synchronize_with_others(traces.variables, self._together)
        self._share(traces)
        if is_first:
            self._planner.check_traces(traces)
            transport = LanesTransport(control.rank, self._identity, around_wait)
            self._planner.begin(traces, arguments, control, transport, self._reporter)
        else:
            traces.check_same_layers(self._first)
        return traces

    @property
    def _first(self) -> SizedTraces:
        """Traces of the first arguments, which determine the plan."""
        return next(iter(self._traces.values()))

    def _share(self, traces: SizedTraces) -> None:
        """Broadcast the initial values of all variables from rank 0."""
        may_copy = self._options.broadcast_variables != "never"
        self._bound |= traces.variables
        names, count = self._holding.broadcast_initial_values(
            self._control, traces.captured_variables.values(), may_copy
        )
        if names:
            self._reporter.on_variables_broadcast(names, count)

    # Layout.

    def _use(self, layout: Layout) -> None:
        """Switch to a layout; ranks that gain layers receive the current values of variables."""
        if self._layout == layout:
            return
        self._layout = layout
        if not self._executions:
            return
        old = next(iter(self._executions.values())).layout
        if old.replica_groups != layout.replica_groups or len(layout.replica_groups) > 1:
            self._agree_so_far()
            self._synchronize()
        self._holding.clear_owners()
        kinds, self._executions = list(self._executions), {}
        for key in kinds:
            fitting = layout.for_batch(self._traces[key].examples_per_rank)
            if fitting.replica_groups == layout.replica_groups:
                self._executions[key] = self._execution(self._traces[key])

    def _execution(self, traces: SizedTraces) -> StepExecutor:
        layout, rank = self._layout, self._control.rank
        assert layout is not None
        layout = layout.for_batch(traces.examples_per_rank)
        if traces.microbatch_graph.recording.is_evaluation:
            layout = layout.forward_only()
        shares = BatchShards(layout, traces.examples_per_rank)
        sizes = {shares.examples_per_replica(stage) for stage in layout.rank_stages(rank)} or {
            traces.microbatch_size
        }
        traced = {size: traces.sized_partition(size, layout.starts) for size in sorted(sizes)}
        lanes = LanesTransport(rank, self._identity, around_wait)
        count, computing = traces.examples_per_rank, self._holding.computing
        own = self._own_results.get(traces)
        execution = make_executor(layout, traced, count, lanes, computing, own, self._may_be_undone)
        averaged = set(execution.averaged_metrics.values()) - self._warned
        self._warned |= averaged
        warn_of_averages(self._reporter.log, self._name, averaged)
        variables = find_owned_variables(
            traces.microbatch_graph,
            traces.captured_variables,
            execution.variables,
            layout.ranks,
            execution.captures,
        )
        if traces is not self._first:
            trained = self._trained(layout)
            check_same_stages(traces, execution.variables, trained)
            if traces.microbatch_graph.recording.is_evaluation:
                # Variables that the update keeps replicated on all ranks belong to no stage.
                variables = [
                    variable for variable in variables if trained.get(variable.key, 0) is not None
                ]
        self._holding.set_owners(variables, self._control.world_size, lanes)
        return execution

    def _trained(self, layout: Layout) -> dict[int, int | None]:
        """Return the stage of each planned variable by key; None: it belongs to every rank."""
        first = self._first
        if layout.is_whole:
            return dict.fromkeys(first.variables, 0)
        stages = UpdatePhase(first.partition(layout.starts)).variables
        return {
            variable.key: stages.get(name) for name, variable in first.captured_variables.items()
        }
