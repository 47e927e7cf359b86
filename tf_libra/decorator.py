"""`optimize`: one line over a training step."""

import copy
import functools
import textwrap
import threading
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, Unpack

from tf_libra import config, strategies
from tf_libra.autotune import Phase, PlanSource, TuningResult
from tf_libra.background_jobs.manager import of_this_process, waiting
from tf_libra.cost_model import CostModel
from tf_libra.planning import burst as burst_lib
from tf_libra.planning import pipeline as pipeline_lib
from tf_libra.planning.burst import BurstStrategy
from tf_libra.planning.pipeline import PipelineStrategy
from tf_libra.specs.backward_profile import BackwardProfile
from tf_libra.specs.burst import BurstPlan
from tf_libra.specs.pipeline import PipelinePlan
from tf_libra.specs.plan import Plan

if TYPE_CHECKING:
    from tf_libra.model_parallel.planning.protocol import Planner
    from tf_libra.runtime.protocol import TrainingStep

_COLUMNS = 100


@config.with_option_signature()
def optimize(
    strategy: strategies.Strategy | PipelineStrategy | BurstStrategy | str = "libra",
    **options: Unpack[config.OptimizeKwargs],
) -> Callable[[Callable[..., Any]], "Optimized"]:
    """Makes a training step data-parallel, under a plan made for this model on these machines.

        hvd.init()

        @tf_libra.optimize("libra")
        @tf.function
        def train_step(images, labels): ...

    Every gradient of a variable that the step computes with `tf.GradientTape` is averaged over
    all ranks. The first steps measure (and train); then a plan is made and the graph rewritten.
    Under a strategy of pipelines, such as `tf_libra.strategies.Spp(num_microbatches=4)`, each rank
    runs a stage of the step (docs/pipeline.md), under one of bursts, such as
    `tf_libra.strategies.DeepPool(max_amplification=1.5)`, each layer runs on its own number of
    ranks (docs/burst.md).

    Args:
        strategy: what plans: a name or an object of `tf_libra.strategies`.
        **options: by name, those of docs/options.md; `help` lists them, too.

    Returns:
        A decorator for a `tf.function` or a plain function, which it makes one.

    Raises:
        ValueError: an argument is out of its range; names it, its value and what is allowed.
    """
    if callable(strategy):
        raise ValueError("optimize is called before it decorates: @tf_libra.optimize()")
    pipeline, burst = pipeline_lib.find(strategy), burst_lib.find(strategy)
    if pipeline is not None:
        of_stages = _options_of_stages(config.PIPELINES, pipeline.name, options)
        return functools.partial(
            Optimized,
            options=of_stages,
            make_planner=functools.partial(_pipeline_planner, pipeline, of_stages.memory_bytes),
        )
    if burst is not None:
        given = options.pop("plan", None)
        plan = None if given is None else config.load_burst_plan(given)
        return functools.partial(
            Optimized,
            options=_options_of_stages(config.BURSTS, burst.name, options),
            make_planner=functools.partial(_burst_planner, burst, plan),
        )
    resolved = config.resolve({"strategy": strategy, **options})
    config.reject_unsupported_options(config.DATA_PARALLELISM, resolved.strategy.name, options)
    return functools.partial(Optimized, options=resolved)


def runs_in_stages(strategy: Any) -> bool:
    """Returns whether a strategy, or the one of that name, gives each rank layers of its own."""
    return pipeline_lib.find(strategy) is not None or burst_lib.find(strategy) is not None


def _pipeline_planner(strategy: PipelineStrategy, memory_bytes: float | None) -> "Planner":
    from tf_libra.model_parallel.planning.pipeline_planner import PipelinePlanner

    return PipelinePlanner(strategy, memory_bytes)


def _burst_planner(strategy: BurstStrategy, plan: BurstPlan | None) -> "Planner":
    from tf_libra.model_parallel.planning.burst_planner import BurstPlanner

    return BurstPlanner(strategy, plan)


def _options_of_stages(kind: str, strategy: str, given: Mapping[str, Any]) -> config.Options:
    """Returns the options, with a data-parallel strategy that is never used.

    Args:
        kind: of the strategy.
        strategy: its name.
        given: what the user requested, except for burst plans.

    Raises:
        ValueError: an option is given that this kind does not have, or that is out of its range.
    """
    config.reject_unsupported_options(kind, strategy, given)
    engine = given.get("engine", "auto")
    if engine not in ("auto", "lanes"):
        raise ValueError(f"engine must be 'lanes' for {kind}, got {engine!r}")
    return config.resolve({"strategy": strategies.SynEasgd(), **given, "engine": "lanes"})


class Optimized:
    """A training step under a plan. Called like the function it wraps.

    Attributes:
        phase: where in its life it is; a string such as "measure" or "run".
        plan: what it runs under; None before a plan is active.
        profile: measured backward computation; None before, and where none was measured.
        cost_model: fitted contention model; None before, and if none was fitted.
        tuned: all that tuning came to, in this job or in an earlier one whose plan was kept; None
            before, and for a plan that was given.
        settled: whether nothing is tried out or measured any more.
    """

    # By it AutoGraph knows what it has nothing to convert in, where a function calls a step in
    # `tf.init_scope`, say.
    autograph_info__: ClassVar[dict[str, Any]] = {}

    def __init__(
        self,
        function: Callable[..., Any],
        options: config.Options,
        tuner: Any = None,
        make_planner: "Callable[[], Planner] | None" = None,
        weights: Callable[[], Sequence[Any]] = tuple,
    ) -> None:
        """Wraps `function`; nothing runs before the first call.

        Args:
            function: a `tf.function` or a plain function.
            options: what the user requested.
            tuner: called like `tf_libra.autotune.tune`, decides instead of it what is tried; None
                for that itself.
            make_planner: makes what plans a pipeline, or bursts; None for data parallelism.
            weights: returns those of a Keras model that the steps train. The graph may hold their
                values as constants, so it does not name all of them.

        Raises:
            ValueError: `function` cannot be called, or is compiled by XLA.
        """
        from tf_libra.model_parallel.staged_step import StagedTraining
        from tf_libra.runtime.training_step import TrainingFunction

        if not callable(function):
            raise ValueError(f"optimize decorates a function, got {function!r}")
        functools.update_wrapper(self, function, updated=())
        self._made_of = (function, options, tuner, make_planner)
        # Threads that call it concurrently take turns: the ranks' steps are one after the other.
        self._turn = threading.RLock()
        self._of_objects: weakref.WeakKeyDictionary[Any, Optimized] = weakref.WeakKeyDictionary()
        self._training: TrainingStep
        if make_planner is None:
            self._training = TrainingFunction(function, options, tuner, weights)
        else:
            self._training = StagedTraining(function, make_planner, options, waiting)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs one training step."""
        return self._step(1, args, kwargs)

    def several(self, num_steps: int, *args: Any, **kwargs: Any) -> Any:
        """Runs the function where these arguments make it a graph of `num_steps` training steps.

        All-reduces of different steps are never fused. Until `settled`, only single steps should
        run: what is measured and planned is one step.
        """
        return self._step(num_steps, args, kwargs)

    def _step(self, num_steps: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        background = of_this_process().background
        with self._turn:
            if background is None:
                return self._training.step(args, kwargs, num_steps)
            with background.beside(lambda: self.settled):
                result = self._training.step(args, kwargs, num_steps)
        got = background.news()
        if got is not None:
            self._training.background(got)
        return result

    def __get__(self, instance: Any, owner: type | None = None) -> "Self | types.MethodType":
        """Binds a decorated method to its object."""
        if instance is None:
            return self
        return types.MethodType(self._of(instance), instance)

    def _of(self, instance: Any) -> "Optimized":
        """The decorated function of an object.

        In stages each object has layers, a plan and variables of its own; those of the first one
        are the class's, too.
        """
        *_, make_planner = self._made_of
        is_first, self._training.is_method = not self._training.is_method, True
        if make_planner is None:
            return self
        if instance not in self._of_objects:
            one = self if is_first else type(self)(*self._made_of)
            one._training.is_method = True
            self._of_objects[instance] = one
        return self._of_objects[instance]

    def __getattr__(self, name: str) -> Any:
        """Says what a `tf.function` has and this has not."""
        called = self.__dict__.get("__name__", "the step")
        message = f"{called!r}, decorated with tf_libra.optimize, has no {name!r}"
        if hasattr(self.__dict__.get("__wrapped__"), name):
            message += (
                ": its graphs are traced by calling it, and rewritten for a plan;"
                f" {called}.__wrapped__.{name} is that of the function as it was written, which"
                " averages nothing"
            )
        raise AttributeError(message, name=name, obj=self)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Optimized":
        """Another decorated function, of a copy: with the object that it is a method of, say."""
        function, *others = self._made_of
        return type(self)(copy.deepcopy(function, memo), *others)

    @property
    def phase(self) -> Phase:
        """The phase that it is in."""
        return self._training.state.phase

    @property
    def plan(self) -> Plan | PipelinePlan | BurstPlan | None:
        """The plan that it runs under; None before one is active."""
        return self._training.plan

    @property
    def profile(self) -> BackwardProfile | None:
        """Measured backward computation; None before it is known."""
        conclusion = self._training.state.conclusion
        return None if conclusion is None else conclusion.profile

    @property
    def cost_model(self) -> CostModel | None:
        """Fitted contention model; None before it is known."""
        conclusion = self._training.state.conclusion
        return None if conclusion is None else conclusion.cost_model

    @property
    def tuned(self) -> TuningResult | None:
        """All that tuning came to, in this job or in an earlier one; None before."""
        state = self._training.state
        return None if state.origin is PlanSource.USER else state.conclusion

    @property
    def settled(self) -> bool:
        """True once nothing is tried out or measured any more; from the same step on every rank."""
        return self._training.settled

    def check_variables(self) -> None:
        """Compares the variables of the step with those of every other rank.

        Before the first step that is done anyway. Call it, on all ranks, after variables were
        changed between steps, as by restoring a checkpoint.

        Raises:
            ValueError: on every rank: the first variable that differs.
        """
        self._training.check_variables()

    def synchronize_variables(self) -> None:
        """Brings the variables of the step up to date on every rank.

        Ranks of a pipeline, or of bursts, update those of their own layers only: call it, on all
        ranks, before variables are read, as for a checkpoint or an evaluation. Under data
        parallelism they are up to date.

        Raises:
            HorovodInternalError: a rank is gone, late, or gave up.
        """
        self._training.synchronize_variables()

    def close(self) -> None:
        """Says how training went and closes files in `logdir`, as the end of the process does.

        Steps may still be run; they are not written down any more.
        """
        self._training.close()

    def explain(self) -> str:
        """Returns the facts known so far as text (100 columns): model, plan, times, background."""
        text = self._training.explain()
        background = of_this_process().background
        if background is None:
            return text
        return "\n".join([text, *textwrap.wrap(f"background: {background.describe()}", _COLUMNS)])
