"""Options of `optimize`: the only place that declares them.

They yield the signature and the documentation of `optimize` (`signature.py`), the checks of values,
and the options that must be the same on all ranks. docs/options.md is checked against
them, and so is `OptimizeKwargs`, by which static checkers know them.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tf_libra import strategies
from tf_libra.autotune import Budget, tuner_for
from tf_libra.backends import backend
from tf_libra.backends.backend import Backend
from tf_libra.config import validators
from tf_libra.config.option_spec import (
    BURSTS,
    DATA_PARALLELISM,
    KINDS,
    PIPELINES,
    Option,
    check_all,
    option,
)
from tf_libra.cost_model.fit_quality import MAX_MODEL_ERROR
from tf_libra.internal import validation
from tf_libra.planning.strategy import StrategyBase
from tf_libra.specs.plan import Plan

# Of tuning, where the user does not limit its seconds: so many tell when gradients are produced.
LEAST_STEPS = 5


def _wanted(limit: str) -> str:
    """Lists the default of a limit: the usual one, and those of strategies that differ."""
    usual = getattr(StrategyBase, limit)
    wanted = {name: getattr(kind, limit) for name, kind in strategies.BY_NAME.items()}
    others = [f"of `{name}` {value:g}" for name, value in wanted.items() if value != usual]
    return ", ".join([f"{usual:g}", *others])


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Limits of the tuning before a plan is active, and of the cost model that may make it.

        @tf_libra.optimize("libra", tuning=tf_libra.Tuning(max_steps=40))

    Raises:
        ValueError: an option is out of its range.
    """

    max_steps: int = option(
        None,
        "int | None",
        validators.check_optional_steps,
        f"""steps that may go by before a plan is in force; by default what the strategy wants:
        {_wanted("tuning_steps")}.""",
        alone="max_tuning_steps",
    )
    max_seconds: float | None = option(
        None,
        "float | None",
        validators.check_optional_above_0,
        f"""seconds that may, likewise; whichever comes first. By default what the strategy wants:
        {_wanted("tuning_seconds")}; but {LEAST_STEPS} steps, however long these take.""",
        alone="max_tuning_seconds",
    )
    max_model_error: float = option(
        MAX_MODEL_ERROR,
        "float",
        validators.check_above_0,
        """median relative error of the model on steps it has not seen, beyond which MG-WFBP plans
        instead, and what the model proposes may race against that; likewise where the budget leaves
        no steps to test it on.""",
        alone="max_model_error",
    )

    again_share: float = option(
        0.02,
        "float",
        validators.check_share,
        """share of the steps' time that tuning again may cost: where steps take a quarter more or
        less than expected for long, plans are tried out and raced anew, in small doses; 0 never
        does.""",
        agreed=True,
        alone="tuning_again_share",
    )

    def __post_init__(self) -> None:
        check_all(self)


@dataclass(frozen=True, kw_only=True)
class Faults:
    """Treatment of ranks that are late, and of gradients that are NaN or infinite.

        @tf_libra.optimize("libra", faults=tf_libra.Faults(check_numerics="skip"))

    Raises:
        ValueError: an option is out of its range.
    """

    timeout_seconds: float = option(
        None,
        "float | None",
        validators.check_timeout,
        f"""how long to wait for another rank at most; by default what {validators.TIMEOUT_VARIABLE}
        says, else {validators.DEFAULT_TIMEOUT_SECONDS:g}.""",
        alone="timeout_seconds",
        of=KINDS,
    )
    stall_warning_seconds: float = option(
        30.0,
        "float",
        validators.check_wait,
        "after how long to warn that another rank has not arrived.",
        alone="stall_warning_seconds",
        of=KINDS,
    )
    liveness_seconds: float = option(
        None,
        "float | None",
        validators.check_liveness,
        f"""after how long a link counts as dead whose other end, or host, answers no more; by
        default what {validators.LIVENESS_VARIABLE} says, else
        {validators.DEFAULT_LIVENESS_SECONDS:g}. Between {validators.LIVENESS_RANGE[0]:g} and
        {validators.LIVENESS_RANGE[1]:g}, of lanes alone.""",
        alone="liveness_seconds",
        of=KINDS,
    )
    check_numerics: str | None = option(
        None,
        "str | None",
        validators.one_of(None, "raise", "skip"),
        """what happens where a gradient of any rank is NaN or infinite: "raise" raises
        FloatingPointError, "skip" warns and goes on; either way on all ranks, in the same step,
        which leaves no trace in any variable. None looks at nothing.""",
        agreed=True,
        alone="check_numerics",
    )

    def __post_init__(self) -> None:
        check_all(self)


@dataclass(frozen=True, kw_only=True)
class Options:
    """All options of `optimize`: first as given, then with their meaning.

    Raises:
        ValueError: names the option, its value and what is allowed.
    """

    strategy: strategies.Strategy = option(
        "libra",
        "strategies.Strategy | str",
        lambda name, value: strategies.resolve(value),
        "what plans: a name or an object of `tf_libra.strategies`.",
        agreed=True,
        of=KINDS,
    )
    engine: str = option(
        "auto",
        "str",
        validators.check_engine,
        """what executes all-reduces: "lanes"; "horovod", which opens no connection of ours, for a
        Horovod that runs on MPI or NCCL; the name of a registered backend; or "auto", which
        is lanes but where Horovod can what they cannot, and says why.""",
        agreed=True,
        of=KINDS,
    )
    threads: tuple[int, ...] | None = option(
        None,
        "int | Sequence[int] | None",
        validators.check_threads,
        """the allowed thread counts R, instead of the strategy's own; one number for a strategy
        that does not choose.""",
    )
    plan: Plan | None = option(
        None,
        "Plan | BurstPlan | str | os.PathLike[str] | None",
        validators.check_plan,
        "a plan (of bursts a `BurstPlan`) or the path of one as JSON, to follow without measuring.",
        of=(DATA_PARALLELISM, BURSTS),
    )
    logdir: Path | None = option(
        None,
        "str | os.PathLike[str] | None",
        validators.check_folder,
        """folder for profile, cost model and plan as JSON, written by rank 0, and for what
        TensorBoard shows.""",
        of=KINDS,
    )
    cache_dir: Path | None = option(
        None,
        "str | os.PathLike[str] | None",
        validators.check_folder,
        """folder in which they are kept for the next job of the same model, machines and versions,
        and settings for jobs that are alike.""",
    )
    broadcast_variables: bool | None = option(
        None,
        "bool | None",
        validators.check_optional_boolean,
        """what happens where variables that training keeps equal differ between ranks. None copies
        rank 0's values to all when the step first uses a variable, and refuses what differs later;
        True copies at every trace that gets a plan of its own; False refuses.""",
        agreed=True,
        of=KINDS,
    )
    local_variables: tuple[Any, ...] = option(
        (),
        "Sequence[Any]",
        validators.check_local_variables,
        """names, patterns such as "*/statistics", or variables that are each rank's own: never
        compared or copied, and their gradients stay as they are. Variables that the step computes
        of a rank's own data (moving averages, metrics), random states, and untrainable ones that
        it only reads need not be named.""",
        agreed=True,
    )
    sparse_as_dense: bool = option(
        False,
        "bool",
        validation.boolean,
        """make the `IndexedSlices` of embeddings dense and plan them with the others, instead of
        gathering their rows.""",
        agreed=True,
        of=KINDS,
    )
    inner_gradients: str | None = option(
        None,
        "str | None",
        validators.one_of(None, "average", "local"),
        """what becomes of gradients of variables that an outer tape differentiates again:
        "average" takes those of all ranks' data, "local" leaves them as they are; None refuses
        them.""",
        agreed=True,
    )
    release_variables: bool = option(
        False,
        "bool",
        validation.boolean,
        """of pipelines alone: free the memory of variables that are of other ranks' stages alone,
        until `synchronize_variables()`.""",
        agreed=True,
        of=(PIPELINES,),
    )
    memory_bytes: float | None = option(
        None,
        "float | None",
        validators.check_optional_above_0,
        """of pipelines alone: what this rank has for the parameters of its stage and their
        gradients; the least of all ranks counts. None: enough.""",
        of=(PIPELINES,),
    )
    progress: bool = option(
        True,
        "bool",
        validation.boolean,
        """show on a terminal every phase that takes longer than a second, in a line that goes when
        it is over.""",
        of=KINDS,
    )
    tuning: Tuning = option(
        None,
        "Tuning | None",
        validators.group(Tuning),
        "a `tf_libra.Tuning`: how long tuning may take.",
    )
    faults: Faults = option(
        None,
        "Faults | None",
        validators.group(Faults),
        "a `tf_libra.Faults`: ranks that are late, gradients that are no numbers.",
        of=KINDS,
    )

    def __post_init__(self) -> None:
        check_all(self)
        tuner_for(self.strategy)
        if self.tuning.max_steps is None:
            steps = self.strategy.tuning_steps
            object.__setattr__(self, "tuning", dataclasses.replace(self.tuning, max_steps=steps))
        if self.threads is not None:
            object.__setattr__(self, "strategy", self.strategy.with_threads(self.threads))
        if self.plan is not None:
            self.backend.check_plan(self.plan)
        most = self.backend.max_threads
        streams = self.strategy.num_streams if self.backend.runs_streams else 1
        if streams > most:
            raise ValueError(f"streams must be at most {most} at once, got {streams}")
        for count in self.strategy.allowed_threads:
            if not 1 <= count <= most // streams:
                at_once = f" for {streams} all-reduces at once" if streams > 1 else ""
                allowed = f"between 1 and {most // streams}{at_once}"
                raise ValueError(f"threads must be {allowed}, got {count}")

    @property
    def budget(self) -> Budget:
        """The steps and seconds that may go by before a plan is active."""
        steps, seconds = self.tuning.max_steps, self.tuning.max_seconds
        if seconds is not None:
            return Budget(steps, seconds)
        return Budget(steps, self.strategy.tuning_seconds, LEAST_STEPS)

    @property
    def backend(self) -> Backend:
        """The backend of all-reduces; before it is decided, lanes, which need the least."""
        return backend.resolve("lanes" if self.is_auto else self.engine)

    @property
    def is_auto(self) -> bool:
        """True if the engine is to be chosen once the job is known."""
        return self.engine == validators.AUTO_ENGINE

    @property
    def default_threads(self) -> bool:
        """True if the user has chosen no thread counts, so that the backend may choose them."""
        chosen = self.strategy
        return self.threads is None and (chosen.allowed_threads == type(chosen)().allowed_threads)

    def agreed(self) -> dict[str, Any]:
        """Returns what all ranks must request alike, except plans and variables, by option."""
        return {
            one.name: getattr(getattr(self, one.group) if one.group else self, one.name)
            for one in declared()
            if one.agreed
        }


GROUPS: dict[str, type] = {"tuning": Tuning, "faults": Faults}


def declared() -> Iterator[Option]:
    """All options in the order in which `optimize` takes them, those of groups last."""
    yield from _declared(Options, "")
    for group, kind in GROUPS.items():
        yield from _declared(kind, group)


def _declared(kind: type, group: str) -> Iterator[Option]:
    for field in dataclasses.fields(kind):
        yield Option(name=field.name, default=field.default, group=group, **field.metadata)


def most_threads(options: Options) -> int:
    """Returns the most concurrent threads that all-reduces may have under these options."""
    if options.plan is not None:
        return options.plan.num_lanes
    return options.strategy.num_lanes
