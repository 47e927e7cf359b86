"""A training function that runs as a pipeline, as the user's script calls it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tf_libra import options as options_lib
from tf_libra.backends import interrupts
from tf_libra.backends.agreement import agree
from tf_libra.backends.control import Control
from tf_libra.model.cluster import Cluster
from tf_libra.model.layers import LayerGraph
from tf_libra.model.pipeline import PipelinePlan
from tf_libra.pipelines import axes as axes_lib
from tf_libra.pipelines import batches, describing, profiling
from tf_libra.pipelines.axes import Axes
from tf_libra.pipelines.cutting import Cut
from tf_libra.pipelines.executing import Execution, check_plan, place_of
from tf_libra.pipelines.lanes import Lanes
from tf_libra.pipelines.planning import plan_for
from tf_libra.pipelines.recording import Recorder
from tf_libra.pipelines.shares import Shares, check_divides
from tf_libra.pipelines.step_graph import StepGraph
from tf_libra.pipelines.updating import Update
from tf_libra.planning.pipeline import DataParallel, PipelineStrategy
from tf_libra.session import identity
from tf_libra.session import variables as variables_lib
from tf_libra.session.meeting import Meeting
from tf_libra.session.state import State
from tf_libra.story.story import Story
from tf_libra.tracing import marked_function
from tf_libra.tracing.marking import refuse_callers, refuse_eager_functions
from tf_libra.tuning import Phase


@dataclass(frozen=True)
class _Prepared:
    """What runs for arguments of one kind; `order` is that of the trace's arguments among them."""

    execution: Execution
    graph: StepGraph
    order: list[int]


class PipelineTraining:
    """One decorated function in this process, under a strategy of pipelines.

    Attributes:
        plan: what it runs under; None before it is made.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        strategy: PipelineStrategy,
        options: options_lib.Options,
    ) -> None:
        """Runs nothing before the first step.

        Args:
            function: a `tf.function` or a plain function.
            strategy: who plans; it says how many microbatches there are.
            options: what else the user asked for.

        Raises:
            ValueError: the number of microbatches is missing, or the function is compiled by XLA.
        """
        if strategy.num_microbatches is None:
            raise ValueError(
                f"num_microbatches must be given, at least 1, got None: say"
                f" tf_libra.strategies.{type(strategy).__name__}(num_microbatches=4)"
            )
        self._num_microbatches = strategy.num_microbatches
        self._function = function
        self._strategy = strategy
        self._options = options
        self._name = marked_function.step_name(function)
        self._identity = identity.of_another(self._name)
        self._alone = marked_function.as_tf_function(function)
        self._meeting = Meeting(self._name, self._identity, options)
        self._forget()

    def _forget(self) -> None:
        """Knows nothing of other ranks, or of traces."""
        self.plan: PipelinePlan | None = None
        self._layers: LayerGraph | None = None
        self._cluster: Cluster | None = None
        self._story = Story(self._options)
        self._recorder = Recorder(self._function)
        self._executions: dict[tuple[str, ...], _Prepared] = {}
        self._current: Execution | None = None
        self._shared: set[int] = set()
        self._step = 0

    # What the user asks.

    @property
    def state(self) -> State:
        """Where in its life it is."""
        if self._meeting.is_alone:
            return State(Phase.PASS_THROUGH)
        return State(Phase.TRACE if self.plan is None else Phase.RUN)

    @property
    def settled(self) -> bool:
        """Whether nothing is measured any more."""
        return self._meeting.is_alone or self.plan is not None

    def explain(self) -> str:
        """What is known so far, as text of at most 100 columns."""
        if self.plan is None or self._layers is None or self._current is None:
            return f"{self._name}: no pipeline is planned yet"
        return describing.explained(self._name, self.plan, self._layers, self._current)

    def close(self) -> None:
        """Says nothing more."""
        self._story.close()

    def check_variables(self) -> None:
        """Raises `ValueError`: ranks have other variables by design."""
        raise ValueError(
            f"{self._name} runs as a pipeline, whose ranks update their own stages' variables only:"
            " call synchronize_variables()"
        )

    def synchronize_variables(self) -> None:
        """Brings the variables of all stages up to date on every rank, all of which call it."""
        if self._meeting.control is None or not self._executions:
            return
        self._guarded(self._synchronize)

    def _synchronize(self) -> None:
        control = self._meeting.control
        assert control is not None and self.plan is not None
        self._meeting.at_the_same_place("synchronize_variables")
        transport = Lanes(control.rank, self._identity)
        done: set[int] = set()
        for prepared in self._executions.values():
            inputs = prepared.graph.recording.concrete.graph.inputs
            for one in _held(prepared.graph):
                stage = prepared.execution.variables.get(inputs[one.index].op.name)
                if stage is None or one.key in done:
                    continue
                done.add(one.key)
                ranks = self.plan.stages[stage].devices
                name = f"variable {one.name}"
                if control.rank == ranks[0]:
                    for rank in range(control.world_size):
                        if rank not in ranks[:1]:
                            transport.send(one.read_value(), rank, name)
                else:
                    one.assign(transport.receive(one.dtype, one.shape, ranks[0], name))

    # One step.

    def step(self, args: tuple[Any, ...], kwargs: dict[str, Any], num_steps: int = 1) -> Any:
        """Runs one training step.

        Raises:
            ValueError: something cannot be right, or cannot be a pipeline; named.
            HorovodInternalError: a rank is gone, late, or gave up; the step was not completed.
            EngineError, tf.errors.OpError: the same call would fail again.
        """
        if num_steps != 1:
            raise ValueError(
                f"{self._name} runs as a pipeline, one step at a time, got {num_steps} steps"
            )
        if self._meeting.is_over:
            self._meeting.end()
            self._story.close()
            self._forget()
        self._meeting.check()
        if self._meeting.is_alone:
            return self._alone(*args, **kwargs)
        refuse_callers(self._name, ": a pipeline is driven from Python")
        return self._guarded(partial(self._synchronous_step, args, kwargs))

    def _guarded(self, call: Callable[[], Any]) -> Any:
        """Tells the other ranks where this one fails, which else would wait."""
        try:
            return interrupts.of_this_process().during(call)
        except BaseException as error:
            self._story.stopped()
            self._meeting.give_up(error, error)
            raise

    def _synchronous_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._meeting.control is None:
            self._meeting.meet(self._story)
            if self._meeting.is_alone:
                return self._alone(*args, **kwargs)
            agree(self._control, {"strategy": repr(self._strategy)})
        refuse_eager_functions(self._name)
        given = batches.as_tensors(self._name, (args, kwargs))
        self._step += 1
        self._control.set_step(self._step)
        key = tuple(batches.signature(given))
        if key not in self._executions:
            self._executions[key] = self._prepared(given)
        prepared = self._executions[key]
        self._current = prepared.execution
        leaves = batches.tensors(given)
        flat = prepared.execution.step([leaves[place] for place in prepared.order])
        return prepared.graph.recording.concrete.function_type.pack_output(flat)

    @property
    def _control(self) -> Control:
        assert self._meeting.control is not None
        return self._meeting.control

    # Before the first step with arguments of a kind.

    def _prepared(self, given: Any) -> "_Prepared":
        """Traces the step, plans where there is no plan, and makes what this rank executes."""
        control = self._control
        if self._executions:
            self._meeting.at_the_same_place("arguments of another kind")
        agree(control, {"arguments": batches.signature(given)})
        samples = batches.num_samples(self._name, given)
        check_divides(samples, control.world_size, self._num_microbatches)
        size = samples * control.world_size // self._num_microbatches
        whole = self._traced(given, size)
        agree(control, {"computation": axes_lib.digest(whole)})
        self._share(whole)
        if self.plan is None:
            self._make_plan(whole, given, samples, size)
        plan = self.plan
        assert plan is not None
        names = tuple(layer.name for layer in whole.layers)
        if names != plan.layer_names:
            raise ValueError(
                f"{self._name} has other layers for arguments of another kind: {names} and"
                f" {plan.layer_names}"
            )
        stage, _ = place_of(plan, control.rank)
        own = Shares(plan, samples).size_in(stage)
        graph = whole if own == size else self._traced(given, own)
        axes = self._axes(graph, given, own)
        cut = Cut(graph, [one.start for one in plan.stages])
        transport = Lanes(control.rank, self._identity)
        execution = Execution(cut, plan, axes, samples, transport)
        return _Prepared(execution, graph, self._order(graph, given, own))

    def _order(self, graph: StepGraph, given: Any, size: int) -> list[int]:
        """Which of the tensors that are given each argument of a trace is."""
        args, kwargs = batches.resampled(given, size)
        return self._recorder.order(graph.recording.concrete, args, kwargs)

    def _traced(self, given: Any, size: int) -> StepGraph:
        args, kwargs = batches.sized(given, size)
        return StepGraph(self._recorder.record(args, kwargs))

    def _axes(self, graph: StepGraph, given: Any, size: int) -> Axes:
        return Axes(graph, size, self._traced(given, 2 * size), 2 * size)

    def _share(self, graph: StepGraph) -> None:
        """Lets all variables start as those of rank 0."""
        held = [one for one in _held(graph) if one.key not in self._shared]
        self._shared |= {one.key for one in held}
        own = [one.digest() if one.is_number else "" for one in held]
        everyone = self._control.all_gather(own)
        differing = [
            one for index, one in enumerate(held) if len({rank[index] for rank in everyone}) > 1
        ]
        if differing and self._options.broadcast_variables is False:
            raise ValueError(
                f"variable {differing[0].name!r} differs between the ranks, and"
                " broadcast_variables=False refuses that"
            )
        for one in differing:
            variables_lib.broadcast(self._control, one)
        if differing:
            self._story.copied([one.name for one in differing], len(held))

    def _make_plan(self, graph: StepGraph, given: Any, samples: int, size: int) -> None:
        """Measures on all ranks, plans on rank 0."""
        control = self._control
        if len(graph.layers) == 1 and not isinstance(self._strategy, DataParallel):
            raise ValueError(f"{self._name} cannot be cut into stages: {graph.why_uncut()}")
        num_stages = getattr(self._strategy, "num_stages", None)
        limits = {"layers": len(graph.layers), "workers": control.world_size}
        for what, limit in limits.items():
            if num_stages is not None and num_stages > limit:
                raise ValueError(
                    f"num_stages must be at most the number of {what}, {limit}, got {num_stages}"
                )
        Update(Cut(graph, range(len(graph.layers))))  # what cannot be updated apart is refused
        self._story.busy(Phase.MEASURE)
        leaves = batches.tensors(batches.resampled(given, size))
        places = self._order(graph, given, size)
        arguments = dict(zip(graph.arguments, (leaves[i] for i in places), strict=True))
        layers = profiling.averaged(profiling.measured_layers(graph, arguments), control)
        transport = Lanes(control.rank, self._identity)
        cluster = profiling.measured_cluster(transport, control)
        document = None
        if control.rank == 0:
            axes = self._axes(graph, given, size)

            def check(plan: PipelinePlan) -> None:
                Shares(plan, samples)
                check_plan(Cut(graph, [one.start for one in plan.stages]), plan, axes)

            plan = plan_for(layers, cluster, self._strategy, self._num_microbatches, check)
            document = plan.to_json()
        self.plan = PipelinePlan.from_json(control.broadcast(document))
        self._layers, self._cluster = layers, cluster
        self._story.stopped()
        if control.rank == 0:
            self._story.log.info("pipeline: %s", describing.in_a_line(self.plan))
            for note in self.plan.notes:
                self._story.log.info("pipeline: %s", note)


def _held(graph: StepGraph) -> list[Any]:
    """The variables that a trace captures."""
    concrete = graph.recording.concrete
    found = variables_lib.held(concrete, [None] * len(graph.arguments))
    return [one for one in found if one.is_variable]
