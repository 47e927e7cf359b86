"""From what a user gives by name to what it means."""

from typing import Any

from tf_libra.options.options import GROUPS, Options, declared


def resolve(given: dict[str, Any]) -> Options:
    """What a user has given by name, checked, with what was left open filled in.

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
