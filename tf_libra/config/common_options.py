"""Options of every kind of strategy, and how kinds of options are listed and resolved."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from tf_libra.backends import backend
from tf_libra.backends.backend import Backend
from tf_libra.config import validators
from tf_libra.config.option_groups import GROUPS, Faults, check_names
from tf_libra.config.option_spec import Option, check_all, option
from tf_libra.internal import validation
from tf_libra.specs.plan import Plan

_Options = TypeVar("_Options", bound="Options")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of every kind of strategy: first as given, then checked.

    Raises:
        ValueError: names the option, its value and what is allowed.
    """

    strategy: Any = option(
        "auto",
        "strategies.Strategy | str",
        lambda name, value: value,
        "a name or an object of `tf_libra.strategies`.",
        agreed=True,
    )
    engine: str = option(
        "auto",
        "str",
        validators.check_engine,
        """executor of all-reduces: "lanes", "horovod", a registered backend, or "auto": lanes,
        unless only Horovod can reduce the gradients.""",
        agreed=True,
    )
    logdir: Path | None = option(
        None,
        "str | os.PathLike[str] | None",
        validators.check_folder,
        "folder for TensorBoard, and for profile, cost model and plan as JSON.",
    )
    broadcast_variables: str = option(
        "first_use",
        "bool | str",
        validators.check_broadcast_variables,
        """if replicated variables differ: "first_use" copies rank 0's once, then raises;
        "always", or True, copies for each new plan; "never", or False, raises.""",
        agreed=True,
    )
    sparse_as_dense: bool | str = option(
        False,
        "bool | str",
        validators.boolean_or("rows"),
        'plan `IndexedSlices` as dense gradients; "rows" only adds rows of one id.',
        agreed=True,
    )
    check_numerics: str = option(
        "off",
        "str",
        validators.one_of("off", "raise", "skip"),
        """treatment of NaN and infinite gradients of any rank: "raise" raises FloatingPointError,
        "skip" warns; both on all ranks, without any update of variables.""",
        agreed=True,
    )
    timeout_seconds: float = option(
        None,
        "float | None",
        validators.check_timeout,
        f"""longest wait for another rank. None: {validators.TIMEOUT_VARIABLE}, else
        {validators.DEFAULT_TIMEOUT_SECONDS:g}.""",
    )
    progress: bool = option(
        True,
        "bool",
        validation.boolean,
        "show phases that take longer than a second on a terminal, in a transient line.",
    )
    faults: Faults = option(
        None,
        "Faults | None",
        validators.group(Faults),
        "a `tf_libra.Faults`: further deadlines for late ranks.",
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
    def num_tuning_steps(self) -> int:
        """Most steps before a plan is active; 0 without tuning."""
        return 0

    @property
    def family_conflict(self) -> str:
        """Reason why no strategy of another kind can join trials, in a clause; empty if it can."""
        if self.is_auto or self.engine == "lanes":
            return ""
        return "the engine is not lanes, which carry examples and results between ranks"

    @property
    def all_reduce_plan(self) -> Plan | None:
        """User-provided plan of all-reduces."""
        return None

    @property
    def has_error_feedback(self) -> bool:
        """True if rounding errors are added to the next gradients."""
        return False

    @property
    def local_variables(self) -> tuple[Any, ...]:
        """Names, patterns and variables that each rank keeps for itself."""
        return ()

    def with_backend_threads(self) -> Self:
        """Returns the options with the backend's thread counts if the strategy has its defaults."""
        return self

    def agreed(self) -> dict[str, Any]:
        """Returns what all ranks must request alike, except plans and variables, by option."""
        return {
            option.name: getattr(getattr(self, option.group) if option.group else self, option.name)
            for option in declared(type(self))
            if option.agreed
        }


def declared(kind: type[Options]) -> Iterator[Option]:
    """Yields the options of one kind of strategy; options in groups come last."""
    yield from _fields(kind, "")
    names = {field.name for field in dataclasses.fields(kind)}
    for group, group_kind in GROUPS.items():
        if group in names:
            yield from _fields(group_kind, group)


def _fields(kind: type, group: str) -> Iterator[Option]:
    for field in dataclasses.fields(kind):
        yield Option(name=field.name, default=field.default, group=group, **field.metadata)


def resolve_as(kind: type[_Options], kwargs: Mapping[str, Any]) -> _Options:
    """Checks the options that a user has given by keyword, and fills in the others.

    Args:
        kind: the options of the strategy's kind.
        kwargs: values by keyword.

    Raises:
        TypeError: there is no such option.
        ValueError: names the option, its value and what is allowed.
    """
    check_names("optimize", kwargs)
    names = {field.name for field in dataclasses.fields(kind)}
    for name in kwargs:
        if name not in names:
            raise TypeError(f"optimize() got an unexpected keyword argument {name!r}")
    return kind(**kwargs)
