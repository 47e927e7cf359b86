"""`optimize`: one line over a training step."""

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
from tf_libra.runtime.step_hooks import active_hooks
from tf_libra.runtime.strategy_kinds import (
    DATA_PARALLELISM,
    AnyStrategy,
    StrategyKind,
    all_options,
    resolve_options,
    resolve_strategy,
)
from tf_libra.specs.backward_profile import BackwardProfile

if TYPE_CHECKING:
    from tf_libra.runtime.protocol import TrainingStep

_COLUMNS = 100


@config.with_option_signature(all_options())
def optimize(
    strategy: AnyStrategy | str = "libra",
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
    kind, chosen = resolve_strategy(strategy)
    resolved = resolve_options(kind, {"strategy": chosen, **options})
    return functools.partial(Optimized, options=resolved, kind=kind)


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
        kind: StrategyKind = DATA_PARALLELISM,
        weights: Callable[[], Sequence[Any]] = tuple,
    ) -> None:
        """Wraps `function`; nothing runs before the first call.

        Args:
            function: a `tf.function` or a plain function.
            options: what the user requested.
            tuner: called like `tf_libra.autotune.tune`, decides instead of it what is tried; None
                for that itself.
            kind: the kind of the strategy.
            weights: returns those of a Keras model that the steps train. The graph may hold their
                values as constants, so it does not name all of them.

        Raises:
            ValueError: `function` cannot be called, or is compiled by XLA.
        """
        from tf_libra.runtime.training_step import TrainingFunction

        if not callable(function):
            raise ValueError(f"optimize decorates a function, got {function!r}")
        functools.update_wrapper(self, function, updated=())
        self._kind = kind
        self._made_of = (function, options, tuner, kind)
        # Threads that call it concurrently take turns: the ranks' steps are one after the other.
        self._turn = threading.RLock()
        self._of_objects: weakref.WeakKeyDictionary[Any, Optimized] = weakref.WeakKeyDictionary()
        self._training: TrainingStep
        if kind.make_step is not None:
            self._training = kind.make_step(function, options)
        else:
            assert isinstance(options, config.DataParallelOptions)
            self._training = TrainingFunction(function, options, tuner, weights)

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
        is_first, self._training.is_method = not self._training.is_method, True
        if not self._kind.is_staged:
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
    def plan(self) -> Any:
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
        lines = [self._training.explain()]
        for hook in active_hooks():
            lines += textwrap.wrap(hook.explain(), _COLUMNS)
        return "\n".join(lines)
