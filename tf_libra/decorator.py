"""The decorator `optimize`, and the decorated step."""

import contextlib
import copy
import functools
import textwrap
import threading
import types
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, Unpack

from tf_libra import config
from tf_libra.autotune import Phase, PlanSource, TuningResult
from tf_libra.cost_model import CostModel
from tf_libra.internal import formatting
from tf_libra.runtime.step_hooks import active_hooks
from tf_libra.runtime.strategy_kinds import (
    DATA_PARALLELISM,
    AnyStrategy,
    StrategyKind,
    all_options,
    resolve_options,
    resolve_plan,
    resolve_strategy,
)
from tf_libra.specs.backward_profile import BackwardProfile

if TYPE_CHECKING:
    from tf_libra.runtime.protocol import TrainingStep


@config.with_option_signature(all_options())
def optimize(
    strategy: AnyStrategy | str = "auto",
    **options: Unpack[config.OptimizeKwargs],
) -> Callable[[Callable[..., Any]], "Optimized"]:
    """Makes a training step distributed, under a plan for this model on these machines.

        @tf_libra.optimize()
        @tf.function
        def train_step(images, labels): ...

    Every gradient of a variable that the step computes with `tf.GradientTape` is averaged over
    all ranks. The first steps measure (and train); then a plan is made and the graph rewritten.
    "auto" tries data-parallel strategies, one rank for all, pipelines and bursts
    (docs/one_rank.md). Under a pipeline strategy, such as
    `tf_libra.strategies.Spp(num_microbatches=4)`, each rank runs a stage (docs/pipeline.md), under
    a burst strategy, such as `tf_libra.strategies.DeepPool(max_amplification=1.5)`, layers on some
    ranks (docs/burst.md).

    Args:
        strategy: a name or an object of `tf_libra.strategies`.
        **options: options of docs/options.md, by name; `help` also lists them.

    Returns:
        A decorator for a `tf.function`, or for a plain function, which becomes one.

    Raises:
        ValueError: an argument is invalid; names it, its value and the allowed values.
    """
    if callable(strategy):
        raise ValueError("optimize must be called to decorate: write @tf_libra.optimize()")
    kind, chosen = resolve_strategy(strategy)
    if getattr(chosen, "families", ()):
        kind, chosen = resolve_plan(options.get("plan")) or (kind, chosen)
    resolved = resolve_options(kind, {"strategy": chosen, **options})
    return functools.partial(Optimized, options=resolved, kind=kind)


class Optimized:
    """A training step under a plan. Called like the function it wraps.

    Attributes:
        phase: phase of tuning; a string such as "measure" or "run".
        plan: active plan; None before there is one.
        profile: measured backward computation; None if there is none.
        cost_model: fitted contention model; None if there is none.
        tuned: result of tuning, in this job or, for a cached plan, in an earlier one; None before,
            and for a user-provided plan.
        settled: whether trials and measurements have ended.
    """

    # Marks the object for AutoGraph as not to be converted, for example when a function calls a
    # step in `tf.init_scope`.
    autograph_info__: ClassVar[dict[str, Any]] = {}

    def __init__(
        self,
        function: Callable[..., Any],
        options: config.Options,
        tuner: Any = None,
        kind: StrategyKind = DATA_PARALLELISM,
        weights: Callable[[], Sequence[Any]] = tuple,
        single_step: Callable[..., Any] | None = None,
    ) -> None:
        """Wraps `function`; nothing runs before the first call.

        Args:
            function: a `tf.function` or a plain function.
            options: the user's options.
            tuner: makes the tuner, called like `tf_libra.autotune.tune`, which None stands for.
            kind: kind of the strategy.
            weights: returns the weights of the Keras model. The graph may hold values of weights as
                constants, and so does not show all weights.
            single_step: one step of `function`, with the same arguments, for strategies that need
                all layers in one graph; None if `function` is such a step.

        Raises:
            ValueError: `function` is not callable, or is compiled by XLA.
        """
        from tf_libra.runtime.family_step import FamilyStep
        from tf_libra.runtime.training_step import TrainingFunction

        if not callable(function):
            raise ValueError(f"optimize decorates a function, got {function!r}")
        functools.update_wrapper(self, function, updated=())
        self._kind = kind
        self._made_of = (function, options, tuner, kind)
        # Steps of concurrent threads run one after the other, as on the other ranks.
        self._turn = threading.RLock()
        self._of_objects: dict[int, Optimized] = {}  # by `id`
        self._live_objects: list[Any] = []
        self._training: TrainingStep
        whole = single_step or function
        if kind.make_step is not None:
            self._training = kind.make_step(whole, options)
        else:
            assert isinstance(options, config.DataParallelOptions)
            self._training = first = TrainingFunction(function, options, tuner, weights)
            families = getattr(options.strategy, "families", ())
            if families and options.plan is None:
                self._training = FamilyStep(whole, options, first, families)
        self._is_staged = not isinstance(self._training, TrainingFunction)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs one training step."""
        return self._step(1, args, kwargs)

    @property
    def runs_several(self) -> bool:
        """Returns whether the next step may be one of several; the same on every rank."""
        return self.settled and self._training.runs_several

    def several(self, num_steps: int, *args: Any, **kwargs: Any) -> Any:
        """Runs the function with arguments for which its graph holds `num_steps` training steps.

        All-reduces of different steps are never fused. Run single steps unless `runs_several`,
        since measurements and plans are those of one step. It may become False again, while "auto"
        compares strategies for step times that have changed.
        """
        return self._step(num_steps, args, kwargs)

    def _step(self, num_steps: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._kind.is_staged:
            self._reject_join()
        hooks = active_hooks()
        with self._turn, contextlib.ExitStack() as stack:
            for hook in hooks:
                stack.enter_context(hook.around_step(lambda: self.settled))
            result = self._training.step(args, kwargs, num_steps)
        for hook in hooks:
            make_record = hook.next_record()
            if make_record is not None:
                self._training.record(make_record)
        return result

    def _reject_join(self) -> None:
        from tf_libra.capture.gradient_weight import is_joined

        if is_joined():
            raise ValueError(
                f"{self.__dict__.get('__name__', 'the step')}: tf_libra.join needs a data-parallel"
                f" strategy, got {self._made_of[1].strategy!r}: give each rank equally many"
                " batches"
            )

    def __get__(self, instance: Any, owner: type | None = None) -> "Self | types.MethodType":
        """Binds a decorated method to its object."""
        if instance is None:
            return self
        return types.MethodType(self._bind(instance), instance)

    def _bind(self, instance: Any) -> "Optimized":
        """Returns the decorated function of an object.

        Under a model-parallel strategy, each object has its own layers, plan and variables. The
        class shares those of the first object.
        """
        is_first, self._training.is_method = not self._training.is_method, True
        if not self._is_staged:
            return self
        key = id(instance)
        if key not in self._of_objects:
            bound = self if is_first else type(self)(*self._made_of)
            bound._training.is_method = True
            self._of_objects[key] = bound
            # Objects need not be hashable.
            try:
                weakref.finalize(instance, self._of_objects.pop, key, None).atexit = False
            except TypeError:  # no weak references: it stays, so that no other one gets its `id`
                self._live_objects.append(instance)
        return self._of_objects[key]

    def __getattr__(self, name: str) -> Any:
        """Raises `AttributeError`, with advice for attributes of a `tf.function`."""
        called = self.__dict__.get("__name__", "the step")
        message = f"{called!r}, decorated with tf_libra.optimize, has no {name!r}"
        if hasattr(self.__dict__.get("__wrapped__"), name):
            message += (
                ": its graphs are traced by calling it, and rewritten for a plan;"
                f" {called}.__wrapped__.{name} belongs to the original function, which averages"
                " nothing"
            )
        raise AttributeError(message, name=name, obj=self)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Optimized":
        """Returns a decorated copy of the function, and of the object whose method it is."""
        function, *others = self._made_of
        return type(self)(copy.deepcopy(function, memo), *others)

    @property
    def phase(self) -> Phase:
        """Phase of tuning."""
        return self._training.state.phase

    @property
    def plan(self) -> Any:
        """Active plan; None before there is one."""
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
        """Result of tuning, in this job or in an earlier one; None before."""
        state = self._training.state
        return None if state.origin is PlanSource.USER else state.conclusion

    @property
    def settled(self) -> bool:
        """True once trials and measurements have ended; from the same step on every rank."""
        return self._training.settled

    @property
    def error_feedback(self) -> Any:
        """State of error feedback, for `tf.train.Checkpoint`; None without that option.

        It holds the rounding errors of this rank (docs/wire_format.md).
        """
        return self._training.error_feedback

    def check_variables(self) -> None:
        """Compares the replicated variables of the step between ranks.

        Call it on all ranks after variables were changed between steps, as by restoring a
        checkpoint. The first step compares them in any case.

        Raises:
            ValueError: on every rank: the first variable that differs.
        """
        self._training.check_variables()

    def synchronize_variables(self) -> None:
        """Synchronizes the variables of the step on every rank.

        Ranks of a pipeline, or of bursts, update only the variables of their own layers. Call it on
        all ranks before variables are read, as for a checkpoint or an evaluation. Under data
        parallelism it does nothing.

        Raises:
            HorovodInternalError: a rank is gone, late, or gave up.
        """
        self._training.synchronize_variables()

    def close(self) -> None:
        """Reports the summary and closes files in `logdir`, as the end of the process does.

        Later steps are not recorded.
        """
        self._training.close()

    def explain(self) -> str:
        """Returns the facts known so far as text (100 columns): model, plan, times, background."""
        lines = [self._training.explain()]
        for hook in active_hooks():
            lines += textwrap.wrap(hook.explain(), formatting.COLUMNS)
        return "\n".join(lines)
