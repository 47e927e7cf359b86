"""Which ranks reach each other without a network."""

import os
from pathlib import Path


def here() -> str:
    """What the ranks have in common that reach each other by Unix sockets; "" where none knows.

    The names of such sockets are those of a network namespace, so two containers of one host are
    two machines.
    """
    try:
        started = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{started}/{os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return ""
