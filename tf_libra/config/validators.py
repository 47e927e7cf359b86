"""Checks of option values: each function returns what a value means, or raises an error.

The first argument is the name by which the value was given. A function leaves a value that it has
returned as it is. `ValueError` names the option, the value and what is allowed.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tf_libra.backends import backend
from tf_libra.config.option_spec import Check
from tf_libra.internal import validation
from tf_libra.specs.plan import WIRE_DTYPES, Plan

AUTO_ENGINE = "auto"
TIMEOUT_VARIABLE = "TF_LIBRA_TIMEOUT_SECONDS"
DEFAULT_TIMEOUT_SECONDS = 600.0
LIVENESS_VARIABLE = "TF_LIBRA_LIVENESS_SECONDS"
DEFAULT_LIVENESS_SECONDS = 10.0
# Whole seconds between keepalive's probes, of which there are five; and a day.
LIVENESS_RANGE = (5.0, 86400.0)
# A wait of three years; what is more would overflow the clock.
MAX_SECONDS = 1e8


def one_of(default: str, *others: str) -> Check:
    """Returns a check for one of these names; None stands for the default."""
    allowed = (default, *others)

    def check(name: str, value: Any) -> str:
        if value is None:
            return default
        # An array would compare element by element.
        if not isinstance(value, str) or value not in allowed:
            choices = ", ".join(repr(choice) for choice in allowed)
            raise ValueError(f"{name} must be one of {choices}, got {value!r}")
        return str(value)

    return check


def check_wire_dtype(name: str, value: Any) -> str | None:
    """The name of a dtype in which float32 may travel, or None."""
    if value is not None and (not isinstance(value, str) or value not in WIRE_DTYPES):
        raise ValueError(f"{name} must be one of {', '.join(WIRE_DTYPES)} or None, got {value!r}")
    return value


def boolean_or(*words: str) -> Check:
    """Returns a check for True, False or one of these words."""
    *others, last = ("True", "False", *map(repr, words))

    def check(name: str, value: Any) -> bool | str:
        if isinstance(value, bool) or (isinstance(value, str) and value in words):
            return value
        raise ValueError(f"{name} must be {', '.join(others)} or {last}, got {value!r}")

    return check


_check_broadcast = one_of("first_use", "always", "never")


def check_broadcast_variables(name: str, value: Any) -> str:
    """Returns "first_use", "always" or "never"; True is "always" and False is "never"."""
    if isinstance(value, bool):
        value = "always" if value else "never"
    return _check_broadcast(name, value)


def group(kind: type) -> Check:
    """Options of a group; None is the group with what it has by default."""

    def check(name: str, value: Any) -> Any:
        if value is None:
            return kind()
        if not isinstance(value, kind):
            raise ValueError(f"{name} must be a tf_libra.{kind.__name__}, got {value!r}")
        return value

    return check


def check_engine(name: str, value: Any) -> str:
    """The name of a registered backend, or AUTO_ENGINE."""
    allowed = (AUTO_ENGINE, *backend.BY_NAME)
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
    return value if value == AUTO_ENGINE else backend.resolve(value).name


def check_steps(name: str, value: Any) -> int:
    """A number of steps, at least 1."""
    return validation.integer(name, value, minimum=1)


def check_optional_steps(name: str, value: Any) -> int | None:
    """A number of steps, at least 1; None for the default of the strategy."""
    return None if value is None else check_steps(name, value)


def check_above_0(name: str, value: Any) -> float:
    """A finite number above 0."""
    return validation.real(name, value, above=0)


def check_optional_above_0(name: str, value: Any) -> float | None:
    """A finite number above 0, or None."""
    return None if value is None else check_above_0(name, value)


def check_share(name: str, value: Any) -> float:
    """A number from 0 to 1."""
    share = validation.real(name, value, minimum=0)
    if share > 1:
        raise ValueError(f"{name} must be at most 1, got {value!r}")
    return share


def check_wait(name: str, value: Any) -> float:
    """Seconds above 0 that the clock can count."""
    seconds = validation.real(name, value, above=0)
    if seconds > MAX_SECONDS:
        raise ValueError(f"{name} must be at most {MAX_SECONDS:g}, got {value!r}")
    return seconds


def check_timeout(name: str, value: Any) -> float:
    """Returns seconds as `check_wait` does; None for what the environment says."""
    if value is not None:
        return check_wait(name, value)
    return _of_environment(TIMEOUT_VARIABLE, DEFAULT_TIMEOUT_SECONDS, check_wait)


def check_liveness(name: str, value: Any) -> float:
    """Seconds in LIVENESS_RANGE; None for what the environment says."""
    if value is None:
        return _of_environment(LIVENESS_VARIABLE, DEFAULT_LIVENESS_SECONDS, check_liveness)
    seconds = validation.real(name, value, above=0)
    least, most = LIVENESS_RANGE
    if not least <= seconds <= most:
        raise ValueError(f"{name} must be between {least:g} and {most:g}, got {value!r}")
    return seconds


def _of_environment(variable: str, default: float, check: Callable[[str, float], float]) -> float:
    text = os.environ.get(variable)
    if text is None:
        return default
    try:
        seconds = float(text)
    except ValueError:
        raise ValueError(f"{variable} must be a number of seconds, got {text!r}") from None
    return check(variable, seconds)


def check_folder(name: str, value: Any) -> Path | None:
    """A path, or None."""
    return None if value is None else _path(name, value)


def check_local_variables(name: str, value: Any) -> tuple[Any, ...]:
    """Names, patterns and variables."""
    one_alone = isinstance(value, (str, Mapping)) or hasattr(value, "assign")
    if one_alone or not isinstance(value, Iterable):
        raise ValueError(
            f"{name} must be a sequence of names, patterns or variables, such as"
            f" ['*/statistics'], got {value!r}"
        )
    found = tuple(value)
    for variable in found:
        if isinstance(variable, str) and variable:
            continue
        # A variable of TensorFlow or Keras, neither of which is needed to say so.
        if isinstance(variable, str) or not (
            hasattr(variable, "assign") and hasattr(variable, "shape")
        ):
            raise ValueError(
                f"{name} must have names, patterns or variables, got {variable!r} among them"
            )
    return found


def check_plan(name: str, value: Any) -> Plan | None:
    """A plan, or the path of one as JSON; None for none."""
    return None if value is None else load_plan(value)


def load_plan(plan: Plan | str | os.PathLike[str]) -> Plan:
    """A plan as it is, or read from a JSON file.

    Raises:
        ValueError: the file cannot be read, or is no plan.
    """
    loaded: Plan = load_document(plan, Plan)
    return loaded


def load_document(plan: Any, kind: Any) -> Any:
    """Returns a plan of a kind, given as it is or as the path of a JSON file; see `load_plan`."""
    if isinstance(plan, kind):
        return plan
    if hasattr(plan, "to_json"):
        raise ValueError(
            f"plan must be a {kind.__name__} under this strategy, got a {type(plan).__name__}"
        )
    path = _path("plan", plan)
    try:
        return kind.from_json(_read(path))
    except OSError as error:
        raise ValueError(f"plan: cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"plan: {path} is not a text file ({error})") from error
    except ValueError as error:
        raise ValueError(f"plan: {path}: {error}") from error


def _read(path: Path) -> str:
    size = path.stat().st_size
    # Reading a pipe or device might never end.
    if not path.is_file():
        raise ValueError("not a file")
    if size > validation.MAX_JSON_CHARACTERS:
        raise ValueError(f"has {size} bytes; at most {validation.MAX_JSON_CHARACTERS} are read")
    return path.read_text()


def plan_format(plan: Any) -> str | None:
    """Returns the format in the header of a plan or of its file; None if it has none."""
    if hasattr(plan, "to_json"):
        return getattr(type(plan), "FORMAT", None)
    try:
        return validation.json_object("plan", _read(_path("plan", plan))).get("format")
    except (OSError, ValueError):  # reported when the plan is loaded
        return None


def _path(name: str, value: Any) -> Path:
    try:
        if not os.fspath(value):
            raise ValueError(f"{name} must be a path, got {value!r}: None is for none")
        if "\0" in os.fspath(value):
            raise ValueError(f"{name} must be a path, got {value!r}")
        return Path(value)
    except TypeError:
        raise ValueError(f"{name} must be a path, got {value!r}") from None
