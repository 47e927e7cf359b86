"""Tells the user what is going on: rank 0 speaks, the others only warn."""

import logging
import os
import sys

LEVEL_VARIABLE = "TF_LIBRA_LOG_LEVEL"


def logger(rank: int) -> logging.Logger:
    """The project's logger, at the level that TF_LIBRA_LOG_LEVEL names (default: info).

    Where the application has set up logging for "tf_libra" or at the root, that is used.
    """
    log = logging.getLogger("tf_libra")
    if not log.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("tf_libra: %(message)s"))
        log.addHandler(handler)
        log.propagate = False
    wanted = os.environ.get(LEVEL_VARIABLE, "info").upper()
    level = logging.getLevelNamesMapping().get(wanted, logging.INFO)
    log.setLevel(level if rank == 0 else max(level, logging.WARNING))
    return log
