"""What a user may ask of `optimize`, checked before anything runs."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tf_libra import checks, strategies
from tf_libra.backends import backend as backend_lib
from tf_libra.backends.backend import Backend
from tf_libra.model.plan import Plan
from tf_libra.planning.strategy import check_allowed_threads
from tf_libra.tuning import Budget

AUTO_ENGINE = "lanes"
NUMERICS = (None, "raise", "skip")
INNER_GRADIENTS = (None, "average", "local")
TIMEOUT_VARIABLE = "TF_LIBRA_TIMEOUT_SECONDS"
DEFAULT_TIMEOUT_SECONDS = 600.0
# A wait of three years; what is more would overflow the clock.
MAX_SECONDS = 1e8


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `optimize` was asked for.

    Attributes:
        engine: name of the backend that executes all-reduces, such as "lanes" or "horovod".
        strategy: what plans, with its arguments.
        plan: a plan to use as it is, so that nothing is measured; None to make one.
        logdir: folder to write profile, model and plan to; None for nowhere.
        cache_dir: folder to keep them in between jobs; None to measure every time.
        broadcast_variables: whether rank 0's values are copied where variables differ that have to
            be equal; None: when they are first used, but not later.
        local_variables: names, patterns and variables that are each rank's own.
        timeout_seconds: how long to wait for another rank at most.
        stall_warning_seconds: after how long to warn that another rank has not arrived.
        budget: what may go by before a plan is in force.
        max_model_error: median relative error beyond which the fitted model is not trusted.
        check_numerics: what to do about gradients that are not finite, one of `NUMERICS`.
        sparse_as_dense: whether sparse gradients are made dense instead of gathered.
        inner_gradients: what becomes of gradients that are differentiated again, one of
            `INNER_GRADIENTS`.
        progress: whether a terminal shows phases that take longer than a second.
        default_threads: whether nobody has said which threads, so that the backend may.
    """

    engine: str
    strategy: strategies.Strategy
    plan: Plan | None
    logdir: Path | None
    cache_dir: Path | None
    broadcast_variables: bool | None
    timeout_seconds: float
    stall_warning_seconds: float
    budget: Budget
    max_model_error: float
    check_numerics: str | None = None
    sparse_as_dense: bool = False
    inner_gradients: str | None = None
    progress: bool = True
    default_threads: bool = False
    local_variables: tuple[Any, ...] = ()

    @property
    def backend(self) -> Backend:
        """What executes all-reduces."""
        return backend_lib.resolve(self.engine)


def resolve(
    strategy: strategies.Strategy | str,
    *,
    engine: str,
    threads: int | tuple[int, ...] | list[int] | None,
    plan: Plan | str | os.PathLike[str] | None,
    logdir: str | os.PathLike[str] | None,
    cache_dir: str | os.PathLike[str] | None,
    broadcast_variables: bool | None,
    timeout_seconds: float | None,
    stall_warning_seconds: float,
    max_tuning_steps: int,
    max_tuning_seconds: float,
    max_model_error: float,
    check_numerics: str | None = None,
    sparse_as_dense: bool = False,
    inner_gradients: str | None = None,
    progress: bool = True,
    local_variables: Sequence[Any] = (),
) -> Options:
    """Checks what a user passed and fills in what was left open.

    Raises:
        ValueError: names the argument, its value and what is allowed.
    """
    if engine != "auto" and engine not in backend_lib.BY_NAME:
        allowed = ", ".join(("auto", *backend_lib.BY_NAME))
        raise ValueError(f"engine must be one of {allowed}, got {engine!r}")
    backend = backend_lib.resolve(AUTO_ENGINE if engine == "auto" else engine)
    chosen = strategies.resolve(strategy)
    if threads is not None:
        chosen = _with_threads(chosen, threads)
    given = None if plan is None else load_plan(plan)
    if given is not None:
        backend.check_plan(given)
    for count in chosen.allowed_threads:
        if not 1 <= count <= backend.max_threads:
            raise ValueError(f"threads must be between 1 and {backend.max_threads}, got {count}")
    return Options(
        engine=backend.name,
        strategy=chosen,
        plan=given,
        logdir=None if logdir is None else _path("logdir", logdir),
        cache_dir=None if cache_dir is None else _path("cache_dir", cache_dir),
        broadcast_variables=None
        if broadcast_variables is None
        else checks.boolean("broadcast_variables", broadcast_variables),
        timeout_seconds=_timeout(timeout_seconds),
        stall_warning_seconds=_seconds("stall_warning_seconds", stall_warning_seconds),
        budget=Budget(max_tuning_steps, max_tuning_seconds),
        max_model_error=checks.real("max_model_error", max_model_error, above=0),
        check_numerics=_one_of("check_numerics", check_numerics, NUMERICS),
        sparse_as_dense=checks.boolean("sparse_as_dense", sparse_as_dense),
        inner_gradients=_one_of("inner_gradients", inner_gradients, INNER_GRADIENTS),
        progress=checks.boolean("progress", progress),
        default_threads=threads is None
        and chosen.allowed_threads == type(chosen)().allowed_threads,
        local_variables=_local_variables(local_variables),
    )


def most_threads(options: Options) -> int:
    """The most threads that any all-reduce may ask for under these options."""
    if options.plan is not None:
        return max(group.num_threads for group in options.plan.groups)
    return max(options.strategy.allowed_threads)


def load_plan(plan: Plan | str | os.PathLike[str]) -> Plan:
    """A plan as it is, or read from a JSON file.

    Raises:
        ValueError: the file cannot be read, or is no plan.
    """
    if isinstance(plan, Plan):
        return plan
    path = _path("plan", plan)
    try:
        # What is no file, such as a pipe, may never come to an end.
        size = path.stat().st_size
        if not path.is_file():
            raise ValueError("not a file")
        if size > checks.MAX_JSON_CHARACTERS:
            raise ValueError(f"has {size} bytes; at most {checks.MAX_JSON_CHARACTERS} are read")
        return Plan.from_json(path.read_text())
    except OSError as error:
        raise ValueError(f"plan: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"plan: {path} is not a text file ({error})") from error
    except ValueError as error:
        raise ValueError(f"plan: {path}: {error}") from error


def _with_threads(
    strategy: strategies.Strategy, threads: int | tuple[int, ...] | list[int]
) -> strategies.Strategy:
    several = (threads,) if isinstance(threads, (int, float)) else threads
    return strategy.with_threads(check_allowed_threads("threads", several))


def _local_variables(given: Sequence[Any]) -> tuple[Any, ...]:
    one_alone = isinstance(given, str) or hasattr(given, "assign")
    if one_alone or not isinstance(given, Iterable):
        raise ValueError(
            "local_variables must be a sequence of names, patterns or variables, such as"
            f" ['*/statistics'], got {given!r}"
        )
    found = tuple(given)
    for one in found:
        if isinstance(one, str) and one:
            continue
        # A variable of TensorFlow or Keras, neither of which is needed to say so.
        if isinstance(one, str) or not (hasattr(one, "assign") and hasattr(one, "shape")):
            raise ValueError(
                f"local_variables must have names, patterns or variables, got {one!r} among them"
            )
    return found


def _timeout(timeout_seconds: float | None) -> float:
    if timeout_seconds is not None:
        return _seconds("timeout_seconds", timeout_seconds)
    text = os.environ.get(TIMEOUT_VARIABLE)
    if text is None:
        return DEFAULT_TIMEOUT_SECONDS
    try:
        seconds = float(text)
    except ValueError:
        raise ValueError(f"{TIMEOUT_VARIABLE} must be a number of seconds, got {text!r}") from None
    return _seconds(TIMEOUT_VARIABLE, seconds)


def _seconds(name: str, value: float) -> float:
    seconds = checks.real(name, value, above=0)
    if seconds > MAX_SECONDS:
        raise ValueError(f"{name} must be at most {MAX_SECONDS:g}, got {value!r}")
    return seconds


def _one_of(name: str, value: str | None, allowed: tuple[str | None, ...]) -> str | None:
    if value not in allowed:
        choices = ", ".join(repr(choice) for choice in allowed)
        raise ValueError(f"{name} must be one of {choices}, got {value!r}")
    return value


def _path(name: str, value: str | os.PathLike[str]) -> Path:
    try:
        if "\0" in os.fspath(value):
            raise ValueError(f"{name} must be a path, got {value!r}")
        return Path(value)
    except TypeError:
        raise ValueError(f"{name} must be a path, got {value!r}") from None
