"""The JSON files of a log directory: of one function as they are named, of others by function."""

import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from tf_libra.internal.process_state import STATE


@STATE.value()
def _holders() -> dict[Path, str]:
    """Returns the function of this process that has the plain names, by log directory."""
    return {}


def documents(logdir: Path, function: str, names: tuple[str, ...]) -> tuple[dict[str, Path], str]:
    """Returns the paths of a function's documents, by name, and a message; empty if none.

    The first function of a process that writes to a log directory has `plan.json` and so on there,
    every other one files that are named after it, such as `plan.train_step.json`.
    """
    holder = _holders().setdefault(logdir.resolve(), function)
    if holder == function:
        return {name: logdir / f"{name}.json" for name in names}, ""
    own = re.sub(r"[^\w#-]+", "_", function)
    return {name: logdir / f"{name}.{own}.json" for name in names}, (
        f"logdir: {logdir} has {names[0]}.json of {holder}; that of {function} is"
        f" {names[0]}.{own}.json"
    )


def write(texts: Mapping[Path, str], log: logging.Logger) -> None:
    """Writes documents, and makes their folders.

    What cannot be written is no reason to end the training: `log` is warned.
    """
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
    except OSError as error:
        log.warning("logdir: not everything could be written: %s", error)


def draw(name: str, plot: Callable[[], None], log: logging.Logger) -> None:
    """Makes a picture, which is left out without Matplotlib.

    Args:
        name: of its file, for the reader.
        plot: makes it, and imports what that needs.
        log: receives a message if Matplotlib is missing, or a file cannot be written.
    """
    try:
        plot()
    except ImportError:
        log.info("logdir: without Matplotlib (pip install tf-libra[plot]) there is no %s", name)
    except OSError as error:
        log.warning("logdir: not everything could be written: %s", error)
