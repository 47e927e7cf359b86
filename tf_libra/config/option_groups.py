"""Groups of rarely needed options, and the place of arguments that belong to another object."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from tf_libra.config import validators
from tf_libra.config.option_spec import check_all, option
from tf_libra.cost_model.fit_quality import MAX_MODEL_ERROR
from tf_libra.planning import data_parallel as strategies
from tf_libra.planning.strategy import StrategyBase

# Steps that show when gradients are produced; tuning takes them if its seconds are unlimited.
LEAST_STEPS = 5

# How to pass arguments that belong to another object, by the object that got them.
REPLACEMENTS = {
    "optimize": {
        "threads": "tf_libra.strategies.Libra(threads=(1, 2)) or Wfbp(num_threads=2)",
        "memory_bytes": "tf_libra.strategies.Spp(memory_bytes=...)",
        "release_variables": "tf_libra.strategies.Spp(release_variables=True)",
        "max_tuning_seconds": "tuning=tf_libra.Tuning(max_seconds=...)",
        "max_model_error": "tuning=tf_libra.Tuning(max_model_error=...)",
        "tuning_again_share": "tuning=tf_libra.Tuning(retune_overhead=...)",
        "stall_warning_seconds": "faults=tf_libra.Faults(stall_warn_seconds=...)",
        "liveness_seconds": "faults=tf_libra.Faults(liveness_seconds=...)",
    },
    "Tuning": {
        "max_steps": "tf_libra.optimize(max_tuning_steps=...)",
        "again_share": "tf_libra.Tuning(retune_overhead=...)",
    },
    "Faults": {
        "timeout_seconds": "tf_libra.optimize(timeout_seconds=...)",
        "check_numerics": "tf_libra.optimize(check_numerics=...)",
        "stall_warning_seconds": "tf_libra.Faults(stall_warn_seconds=...)",
    },
}


def check_names(taker: str, names: Iterable[str]) -> None:
    """Raises `TypeError` for an argument that belongs to another object, and names that object."""
    for name in names:
        replacement = REPLACEMENTS[taker].get(name)
        if replacement is not None:
            raise TypeError(f"{taker}() takes no argument {name!r}: write {replacement}")


def strategy_defaults(limit: str) -> str:
    """Returns the default of a limit, and the defaults of strategies that differ, as text."""
    default = getattr(StrategyBase, limit)
    limits = {name: getattr(kind, limit) for name, kind in strategies.BY_NAME.items()}
    others = [f"{value:g} for `{name}`" for name, value in limits.items() if value != default]
    return ", ".join([f"{default:g}", *others])


class _Group:
    """Base of a group of options: checks names and values."""

    def __new__(cls, *_: Any, **kwargs: Any) -> Self:
        check_names(cls.__name__, kwargs)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        check_all(self)


@dataclass(frozen=True, kw_only=True)
class Tuning(_Group):
    """Limits of tuning beyond `max_tuning_steps`.

        @tf_libra.optimize("libra", tuning=tf_libra.Tuning(max_seconds=20))

    Raises:
        ValueError: an option is out of its range.
    """

    max_seconds: float | None = option(
        None,
        "float | None",
        validators.check_optional_above_0,
        f"""most seconds of tuning; `max_tuning_steps` may end it earlier. None: the limit of the
        strategy ({strategy_defaults("tuning_seconds")}, {strategies.Auto.family_seconds:g} with
        families), but at least {LEAST_STEPS} steps.""",
    )
    max_model_error: float = option(
        MAX_MODEL_ERROR,
        "float",
        validators.check_above_0,
        """largest median relative error of the cost model on held-out steps. Beyond it, or without
        held-out steps, MG-WFBP plans instead, and plans of the model are only candidates in
        trials.""",
    )
    retune_overhead: float = option(
        0.02,
        "float",
        validators.check_share,
        """largest share of step time for retuning, which starts when steps take a quarter more or
        less than expected for long; 0 disables retuning.""",
        agreed=True,
    )


@dataclass(frozen=True, kw_only=True)
class Faults(_Group):
    """Deadlines for late ranks beyond `timeout_seconds`.

        @tf_libra.optimize("libra", faults=tf_libra.Faults(liveness_seconds=30))

    Raises:
        ValueError: an option is out of its range.
    """

    stall_warn_seconds: float = option(
        30.0,
        "float",
        validators.check_wait,
        "seconds until a warning names a rank that has not arrived.",
    )
    liveness_seconds: float = option(
        None,
        "float | None",
        validators.check_liveness,
        f"""seconds without an answer until a connection of lanes counts as dead:
        {validators.LIVENESS_RANGE[0]:g} to {validators.LIVENESS_RANGE[1]:g}. None:
        {validators.LIVENESS_VARIABLE}, else {validators.DEFAULT_LIVENESS_SECONDS:g}.""",
    )


GROUPS: dict[str, type] = {"tuning": Tuning, "faults": Faults}
