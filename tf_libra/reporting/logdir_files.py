"""Files in a log directory: JSON documents of each training function, and pictures."""

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
    """Returns the paths of a function's documents by name, and a message for the log or "".

    The first function of a process that writes to a log directory owns `plan.json` and so on there.
    Files of other functions contain their name, such as `plan.train_step.json`.
    """
    holder = _holders().setdefault(logdir.resolve(), function)
    if holder == function:
        return {name: logdir / f"{name}.json" for name in names}, ""
    own = re.sub(r"[^\w#-]+", "_", function)
    return {name: logdir / f"{name}.{own}.json" for name in names}, (
        f"logdir: {names[0]}.json in {logdir} is that of {holder}; {function} writes"
        f" {names[0]}.{own}.json"
    )


def write(texts: Mapping[Path, str], log: logging.Logger) -> None:
    """Writes documents and creates their folders; logs a failure, as training goes on."""
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
    except OSError as error:
        log.warning("logdir: cannot write all files: %s", error)


def draw(name: str, plot: Callable[[], None], log: logging.Logger) -> None:
    """Draws a picture if Matplotlib is installed; logs a failure, as training goes on.

    Args:
        name: name of the file, for the log.
        plot: imports Matplotlib and writes the file.
        log: logger of failures.
    """
    try:
        plot()
    except ImportError:
        log.info("logdir: %s needs Matplotlib (pip install tf-libra[plot])", name)
    except OSError as error:
        log.warning("logdir: cannot write all files: %s", error)
