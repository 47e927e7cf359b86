"""The project's logger: rank 0 logs everything, other ranks only warnings."""

import logging
import os
import sys

LEVEL_VARIABLE = "TF_LIBRA_LOG_LEVEL"
# Attribute of the logger: the level that this module has set. Another level is the user's, and
# stays. The rank of a process may change in an elastic job.
_OWN_LEVEL = "_tf_libra_level"


def logger(rank: int) -> logging.Logger:
    """Returns the project's logger, at the level that TF_LIBRA_LOG_LEVEL names (default: info).

    If the application has configured logging for "tf_libra" or at the root, as absl does, its
    configuration is used, and so is a level that it has set for "tf_libra", or one above warning
    at the root.
    """
    log = logging.getLogger("tf_libra")
    if not log.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("tf_libra: %(message)s"))
        log.addHandler(handler)
        log.propagate = False
    if log.level in (logging.NOTSET, getattr(log, _OWN_LEVEL, logging.NOTSET)):
        level = _wanted_level()
        log.setLevel(level if rank == 0 else max(level, logging.WARNING))
        setattr(log, _OWN_LEVEL, log.level)
    return log


def _wanted_level() -> int:
    named = _level(os.environ.get(LEVEL_VARIABLE, ""))
    if named is not None:
        return named
    # Warning is the level of a root logger that no code has configured.
    root = logging.getLogger().level
    return root if root > logging.WARNING else logging.INFO


def warn_of_unknown_level(log: logging.Logger) -> None:
    """Warns if TF_LIBRA_LOG_LEVEL names no level."""
    wanted = os.environ.get(LEVEL_VARIABLE)
    if wanted is not None and _level(wanted) is None:
        log.warning(
            "%s must be debug, info, warning, error or critical, got %r; info is taken",
            LEVEL_VARIABLE,
            wanted,
        )


def _level(name: str) -> int | None:
    return logging.getLevelNamesMapping().get(name.upper()) or None
