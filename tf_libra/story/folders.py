"""The JSON files of a log directory: of one function as they are named, of others by function."""

import re
from pathlib import Path

# Which function of this process has the plain names in a log directory.
_HOLDERS: dict[Path, str] = {}


def documents(logdir: Path, function: str, names: tuple[str, ...]) -> tuple[dict[str, Path], str]:
    """Where a function's documents go, by name, and what to say of that; empty if nothing.

    The first function of a process that writes to a log directory has `plan.json` and so on there,
    every other one files that are named after it, such as `plan.train_step.json`.
    """
    holder = _HOLDERS.setdefault(logdir.resolve(), function)
    if holder == function:
        return {name: logdir / f"{name}.json" for name in names}, ""
    own = re.sub(r"[^\w#-]+", "_", function)
    return {name: logdir / f"{name}.{own}.json" for name in names}, (
        f"logdir: {logdir} has {names[0]}.json of {holder}; that of {function} is"
        f" {names[0]}.{own}.json"
    )
