"""`optimize`: one line over a training step."""

import functools
import os
import types
from collections.abc import Callable, Sequence
from typing import Any, Self

from tf_libra import options as options_lib
from tf_libra import strategies
from tf_libra.cost_model import ContentionModel
from tf_libra.model.plan import Plan
from tf_libra.model.profile import BackwardProfile
from tf_libra.tuning import Phase, Tuned


def optimize(
    strategy: strategies.Strategy | str = "libra",
    *,
    engine: str = "auto",
    threads: int | tuple[int, ...] | list[int] | None = None,
    plan: Plan | str | os.PathLike[str] | None = None,
    logdir: str | os.PathLike[str] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    broadcast_variables: bool | None = None,
    local_variables: Sequence[Any] = (),
    timeout_seconds: float | None = None,
    stall_warning_seconds: float = 30.0,
    max_tuning_steps: int = 100,
    max_tuning_seconds: float = 60.0,
    max_model_error: float = 0.25,
    check_numerics: str | None = None,
    sparse_as_dense: bool = False,
    inner_gradients: str | None = None,
    progress: bool = True,
) -> Callable[[Callable[..., Any]], "Optimized"]:
    """Makes a training step data-parallel, under a plan made for this model on these machines.

        hvd.init()

        @tf_libra.optimize("libra")
        @tf.function
        def train_step(images, labels): ...

    Every gradient of a variable that the step computes with `tf.GradientTape` is averaged over
    all ranks. The first steps measure (and train); then a plan is made and the graph rewritten.

    Args:
        strategy: what plans: a name or an object of `tf_libra.strategies`.
        engine: what executes all-reduces: "lanes"; "horovod", for a Horovod that runs on MPI or
            NCCL; the name of a registered backend; or "auto", which is lanes.
        threads: the allowed thread counts R, instead of the strategy's own; one number for a
            strategy that does not choose.
        plan: a plan, or the path of one as JSON, to follow without measuring.
        logdir: folder for profile, cost model and plan as JSON, written by rank 0.
        cache_dir: folder in which they are kept for the next job of the same model, machines and
            versions.
        broadcast_variables: what happens where variables that training keeps equal differ between
            ranks. None copies rank 0's values to all when the step first uses a variable, and
            refuses what differs later; True copies at every trace that gets a plan of its own;
            False refuses.
        local_variables: names, patterns such as "*/statistics", or variables that are each rank's
            own: never compared or copied. Variables that the step computes of a rank's own data
            (moving averages, metrics), random states, and untrainable ones that it only reads
            need not be named.
        timeout_seconds: how long to wait for another rank at most; by default what
            TF_LIBRA_TIMEOUT_SECONDS says, else 600.
        stall_warning_seconds: after how long to warn that another rank has not arrived.
        max_tuning_steps: steps that may go by before a plan is in force.
        max_tuning_seconds: seconds that may, likewise; whichever comes first.
        max_model_error: median relative error of the model on steps it has not seen, beyond
            which MG-WFBP plans instead.
        check_numerics: what happens where a gradient of any rank is NaN or infinite: "raise"
            raises FloatingPointError, "skip" warns and goes on; either way on all ranks, in the
            same step, which leaves no trace in any variable. None looks at nothing.
        sparse_as_dense: make the `IndexedSlices` of embeddings dense and plan them with the
            others, instead of gathering their rows.
        inner_gradients: what becomes of gradients of variables that an outer tape differentiates
            again: "average" takes those of all ranks' data, "local" leaves them as they are; None
            refuses them.
        progress: show on a terminal every phase that takes longer than a second, in a line that
            goes when it is over.

    Returns:
        A decorator for a `tf.function` or a plain function, which it makes one.

    Raises:
        ValueError: an argument is out of its range; names it, its value and what is allowed.
    """
    if callable(strategy):
        raise ValueError("optimize is called before it decorates: @tf_libra.optimize()")
    options = options_lib.resolve(
        strategy,
        engine=engine,
        threads=threads,
        plan=plan,
        logdir=logdir,
        cache_dir=cache_dir,
        broadcast_variables=broadcast_variables,
        local_variables=local_variables,
        timeout_seconds=timeout_seconds,
        stall_warning_seconds=stall_warning_seconds,
        max_tuning_steps=max_tuning_steps,
        max_tuning_seconds=max_tuning_seconds,
        max_model_error=max_model_error,
        check_numerics=check_numerics,
        sparse_as_dense=sparse_as_dense,
        inner_gradients=inner_gradients,
        progress=progress,
    )
    return functools.partial(Optimized, options=options)


class Optimized:
    """A training step under a plan. Called like the function it wraps.

    Attributes:
        phase: where in its life it is; a string such as "measure" or "run".
        plan: what it runs under; None before a plan is in force.
        profile: measured backward computation; None before, and where none was measured.
        cost_model: fitted contention model; likewise.
        tuned: all that tuning came to; None before, on other ranks than 0, and for kept plans.
        settled: whether nothing is tried out or measured any more.
    """

    def __init__(self, function: Callable[..., Any], options: options_lib.Options) -> None:
        """Wraps `function`; nothing runs before the first call.

        Raises:
            ValueError: `function` cannot be called, or is compiled by XLA.
        """
        from tf_libra.session.script import Script

        if not callable(function):
            raise ValueError(f"optimize decorates a function, got {function!r}")
        functools.update_wrapper(self, function, updated=())
        self._script = Script(function, options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs one training step."""
        return self._script.step(args, kwargs)

    def several(self, num_steps: int, *args: Any, **kwargs: Any) -> Any:
        """Runs the function where these arguments make it a graph of `num_steps` training steps.

        All-reduces of different steps are never fused. Until `settled`, only single steps should
        run: what is measured and planned is one step.
        """
        return self._script.step(args, kwargs, num_steps)

    def __get__(self, instance: Any, owner: type | None = None) -> "Self | types.MethodType":
        """Binds a decorated method to its object."""
        return self if instance is None else types.MethodType(self, instance)

    @property
    def phase(self) -> Phase:
        """Where in its life it is."""
        return self._script.journal.phase

    @property
    def plan(self) -> Plan | None:
        """What it runs under; None before a plan is in force."""
        return self._script.journal.plan

    @property
    def profile(self) -> BackwardProfile | None:
        """Measured backward computation; None before it is known."""
        return self._script.journal.profile

    @property
    def cost_model(self) -> ContentionModel | None:
        """Fitted contention model; None before it is known."""
        return self._script.journal.cost_model

    @property
    def tuned(self) -> Tuned | None:
        """All that tuning came to; None before, and on other ranks than 0."""
        return self._script.journal.tuned

    @property
    def settled(self) -> bool:
        """Whether nothing is tried out or measured any more; the same step on every rank."""
        return self._script.settled

    def check_variables(self) -> None:
        """Compares the variables of the step with those of every other rank.

        Before the first step that is done anyway. Call it, on all ranks, after variables were
        changed between steps, as by restoring a checkpoint.

        Raises:
            ValueError: on every rank: the first variable that differs.
        """
        self._script.check_variables()

    def close(self) -> None:
        """Says how training went and closes files in `logdir`, as the end of the process does.

        Steps may still be run; they are not written down any more.
        """
        self._script.close()

    def explain(self) -> str:
        """What is known so far, as text of at most 100 columns: model, plan, times."""
        return self._script.journal.explain()
