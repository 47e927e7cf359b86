"""From what a user gives by name to what it means."""

from collections.abc import Mapping
from typing import Any

from tf_libra.config.options import GROUPS, Options, declared


def reject_unsupported_options(kind: str, strategy: str, given: Mapping[str, Any]) -> None:
    """Rejects options that only strategies of other kinds take.

    Args:
        kind: one of `option_spec.KINDS`.
        strategy: the name of a strategy of this kind.
        given: what a user has given by name.

    Raises:
        ValueError: names the option, its value and what is allowed.
    """
    for one in declared():
        group = given.get(one.group)
        value = given.get(one.given_as, getattr(group, one.name, one.default))
        if kind not in one.of and value != one.default:
            allowed = ", ".join(other.given_as for other in declared() if kind in other.of)
            raise ValueError(
                f"{one.given_as} is no option of {kind}, as strategy {strategy!r} makes them, but"
                f" of {' and '.join(one.of)}, got {value!r}; allowed are {allowed}"
            )


def resolve(given: dict[str, Any]) -> Options:
    """Checks the options that a user has given by name, and fills in the others.

    An option of a group may be given alone; then its group may not.

    Raises:
        TypeError: there is no such option.
        ValueError: names the option, its value and what is allowed.
    """
    own = {one.name for one in declared() if not one.group}
    alone = {one.alone: one for one in declared() if one.group}
    asked = {name: value for name, value in given.items() if name in own}
    parts: dict[str, dict[str, Any]] = {}
    for name, value in given.items():
        if name in own:
            continue
        if name not in alone:
            raise TypeError(f"optimize() got an unexpected keyword argument {name!r}")
        option = alone[name]
        if asked.get(option.group) is not None:
            raise ValueError(
                f"{name} is given, and {option.group}, which holds it as {option.name}"
            )
        # Checked by the name that it was given by.
        parts.setdefault(option.group, {})[option.name] = option.check(name, value)
    groups = {group: GROUPS[group](**values) for group, values in parts.items()}
    return Options(**(asked | groups))
