"""Options of `optimize`: the only place that declares them.

Each kind of strategy has a dataclass of options; those of data parallelism are here. The
declarations give the signature and the documentation of `optimize` (`signature.py`), the checks of
values, and the options that must be the same on all ranks.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from tf_libra.autotune import Budget, tuner_for
from tf_libra.backends import backend
from tf_libra.backends.backend import Backend
from tf_libra.config import validators
from tf_libra.config.option_spec import Option, check_all, option
from tf_libra.cost_model.fit_quality import MAX_MODEL_ERROR
from tf_libra.internal import validation
from tf_libra.planning import data_parallel as strategies
from tf_libra.planning.strategy import StrategyBase
from tf_libra.specs.plan import Plan

_Options = TypeVar("_Options", bound="Options")
# Steps that show when gradients are produced; tuning takes them if its seconds are unlimited.
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
        flat_name="max_tuning_steps",
    )
    max_seconds: float | None = option(
        None,
        "float | None",
        validators.check_optional_above_0,
        f"""seconds that may, likewise; whichever comes first. By default what the strategy wants:
        {_wanted("tuning_seconds")}; but {LEAST_STEPS} steps, however long these take.""",
        flat_name="max_tuning_seconds",
    )
    max_model_error: float = option(
        MAX_MODEL_ERROR,
        "float",
        validators.check_above_0,
        """median relative error of the model on steps it has not seen, beyond which MG-WFBP plans
        instead, and what the model proposes may race against that; likewise where the budget leaves
        no steps to test it on.""",
        flat_name="max_model_error",
    )

    again_share: float = option(
        0.02,
        "float",
        validators.check_share,
        """share of the steps' time that tuning again may cost: where steps take a quarter more or
        less than expected for long, plans are tried out and raced anew, in small doses; 0 never
        does.""",
        agreed=True,
        flat_name="tuning_again_share",
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
        flat_name="timeout_seconds",
    )
    stall_warning_seconds: float = option(
        30.0,
        "float",
        validators.check_wait,
        "after how long to warn that another rank has not arrived.",
        flat_name="stall_warning_seconds",
    )
    liveness_seconds: float = option(
        None,
        "float | None",
        validators.check_liveness,
        f"""after how long a link counts as dead whose other end, or host, answers no more; by
        default what {validators.LIVENESS_VARIABLE} says, else
        {validators.DEFAULT_LIVENESS_SECONDS:g}. Between {validators.LIVENESS_RANGE[0]:g} and
        {validators.LIVENESS_RANGE[1]:g}, of lanes alone.""",
        flat_name="liveness_seconds",
    )
    check_numerics: str | None = option(
        None,
        "str | None",
        validators.one_of(None, "raise", "skip"),
        """what happens where a gradient of any rank is NaN or infinite: "raise" raises
        FloatingPointError, "skip" warns and goes on; either way on all ranks, in the same step,
        which leaves no trace in any variable. None looks at nothing.""",
        agreed=True,
        flat_name="check_numerics",
    )

    def __post_init__(self) -> None:
        check_all(self)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of every kind of strategy: first as given, then checked.

    Raises:
        ValueError: names the option, its value and what is allowed.
    """

    strategy: Any = option(
        "libra",
        "strategies.Strategy | str",
        lambda name, value: value,
        "a name or an object of `tf_libra.strategies`.",
        agreed=True,
    )
    engine: str = option(
        "auto",
        "str",
        validators.check_engine,
        """what executes all-reduces: "lanes"; "horovod", which opens no connection of ours, for a
        Horovod that runs on MPI or NCCL; the name of a registered backend; or "auto", which
        is lanes but where Horovod can what they cannot, and says why.""",
        agreed=True,
    )
    logdir: Path | None = option(
        None,
        "str | os.PathLike[str] | None",
        validators.check_folder,
        """folder for profile, cost model and plan as JSON, written by rank 0, and for what
        TensorBoard shows.""",
    )
    broadcast_variables: bool | None = option(
        None,
        "bool | None",
        validators.check_optional_boolean,
        """what happens where variables that training keeps equal differ between ranks. None copies
        rank 0's values to all when the step first uses a variable, and refuses what differs later;
        True copies at every trace that gets a plan of its own; False refuses.""",
        agreed=True,
    )
    sparse_as_dense: bool = option(
        False,
        "bool",
        validation.boolean,
        """make the `IndexedSlices` of embeddings dense and plan them with the others, instead of
        gathering their rows.""",
        agreed=True,
    )
    progress: bool = option(
        True,
        "bool",
        validation.boolean,
        """show on a terminal every phase that takes longer than a second, in a line that goes when
        it is over.""",
    )
    faults: Faults = option(
        None,
        "Faults | None",
        validators.group(Faults),
        "a `tf_libra.Faults`: ranks that are late, gradients that are no numbers.",
    )

    def __post_init__(self) -> None:
        check_all(self)

    @property
    def backend(self) -> Backend:
        """The backend of all-reduces; before it is decided, lanes, which need the least."""
        return backend.resolve("lanes" if self.is_auto else self.engine)

    @property
    def is_auto(self) -> bool:
        """True if the engine is to be chosen once the job is known."""
        return self.engine == validators.AUTO_ENGINE

    @property
    def num_lanes(self) -> int:
        """Most concurrent threads of all-reduces."""
        return 1

    @property
    def max_tuning_steps(self) -> int:
        """Most steps before a plan is active; 0 without tuning."""
        return 0

    @property
    def all_reduce_plan(self) -> Plan | None:
        """User-provided plan of all-reduces."""
        return None

    @property
    def local_variables(self) -> tuple[Any, ...]:
        """Names, patterns and variables that each rank keeps for itself."""
        return ()

    def with_backend_threads(self) -> Self:
        """Returns the options with the backend's thread counts if the user gave none."""
        return self

    def agreed(self) -> dict[str, Any]:
        """Returns what all ranks must request alike, except plans and variables, by option."""
        return {
            one.name: getattr(getattr(self, one.group) if one.group else self, one.name)
            for one in declared(type(self))
            if one.agreed
        }


@dataclass(frozen=True, kw_only=True)
class DataParallelOptions(Options):
    """Options of data-parallel training, with planned all-reduces."""

    strategy: strategies.Strategy = option(
        "libra",
        "strategies.Strategy | str",
        lambda name, value: strategies.resolve(value),
        "a name or an object of `tf_libra.strategies`.",
        agreed=True,
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
    )
    cache_dir: Path | None = option(
        None,
        "str | os.PathLike[str] | None",
        validators.check_folder,
        """folder in which they are kept for the next job of the same model, machines and versions,
        and settings for jobs that are alike.""",
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
    inner_gradients: str | None = option(
        None,
        "str | None",
        validators.one_of(None, "average", "local"),
        """what becomes of gradients of variables that an outer tape differentiates again:
        "average" takes those of all ranks' data, "local" leaves them as they are; None refuses
        them.""",
        agreed=True,
    )
    tuning: Tuning = option(
        None,
        "Tuning | None",
        validators.group(Tuning),
        "a `tf_libra.Tuning`: how long tuning may take.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
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
    def num_lanes(self) -> int:
        """Most concurrent threads of all-reduces."""
        return self.strategy.num_lanes if self.plan is None else self.plan.num_lanes

    @property
    def max_tuning_steps(self) -> int:
        """Most steps before a plan is active."""
        return self.tuning.max_steps

    @property
    def all_reduce_plan(self) -> Plan | None:
        """User-provided plan of all-reduces."""
        return self.plan

    def with_backend_threads(self) -> Self:
        """Returns the options with the backend's thread counts if the user gave none."""
        chosen = self.strategy
        if self.threads is not None or chosen.allowed_threads != type(chosen)().allowed_threads:
            return self
        return dataclasses.replace(self, strategy=self.backend.default_threads(chosen))


GROUPS: dict[str, type] = {"tuning": Tuning, "faults": Faults}


def declared(kind: type[Options] = DataParallelOptions) -> Iterator[Option]:
    """Yields the options of one kind of strategy; options in groups come last."""
    yield from _fields(kind, "")
    names = {field.name for field in dataclasses.fields(kind)}
    for group, group_kind in GROUPS.items():
        if group in names:
            yield from _fields(group_kind, group)


def _fields(kind: type, group: str) -> Iterator[Option]:
    for field in dataclasses.fields(kind):
        yield Option(name=field.name, default=field.default, group=group, **field.metadata)


def resolve(given: Mapping[str, Any]) -> DataParallelOptions:
    """Checks the given options of data parallelism; see `resolve_as`."""
    return resolve_as(DataParallelOptions, given)


def resolve_as(kind: type[_Options], given: Mapping[str, Any]) -> _Options:
    """Checks the options that a user has given by keyword, and fills in the others.

    Args:
        kind: the options of the strategy's kind.
        given: values by keyword. An option of a group may be given flat, without its group.

    Raises:
        TypeError: there is no such option.
        ValueError: names the option, its value and what is allowed.
    """
    own = {option.name for option in declared(kind) if not option.group}
    flat = {option.flat_name: option for option in declared(kind) if option.group}
    values = {name: value for name, value in given.items() if name in own}
    grouped: dict[str, dict[str, Any]] = {}
    for name, value in given.items():
        if name in own:
            continue
        if name not in flat:
            raise TypeError(f"optimize() got an unexpected keyword argument {name!r}")
        option = flat[name]
        if values.get(option.group) is not None:
            raise ValueError(
                f"{name} must not be given with {option.group}, which has it as {option.name}"
            )
        # Checked by the name that the user wrote.
        grouped.setdefault(option.group, {})[option.name] = option.check(name, value)
    return kind(**values | {group: GROUPS[group](**found) for group, found in grouped.items()})
