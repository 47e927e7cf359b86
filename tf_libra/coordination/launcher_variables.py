"""Values of a launcher's variables: numbers and addresses, checked with the variable's name."""

import re
from collections.abc import Mapping, Sequence

MAX_PORT = 65_535

Env = Mapping[str, str]


def number(env: Env, name: str, low: int = 0, high: int | None = None) -> int:
    """Returns the whole number that a variable has.

    Raises:
        ValueError: the variable is missing, no number, or out of range.
    """
    allowed = f"a whole number from {low}" + ("" if high is None else f" to {high}")
    text = env.get(name)
    if text is None:
        raise ValueError(f"{name} is not set; it must be {allowed}")
    stripped = text.strip()
    value = int(stripped) if stripped.isascii() and stripped.isdecimal() else -1
    if value < low or (high is not None and value > high):
        raise ValueError(f"{name} must be {allowed}, got {text!r}")
    return value


def same(env: Env, names: Sequence[str], low: int = 0) -> int | None:
    """Returns the number that those of the variables that are set have; None if none is set.

    Raises:
        ValueError: a value is invalid, or two variables have different values.
    """
    values = {name: number(env, name, low) for name in names if name in env}
    if len(set(values.values())) > 1:
        listed = ", ".join(f"{name}={value}" for name, value in values.items())
        raise ValueError(f"{listed}: they must have the same value")
    return next(iter(values.values()), None)


def required(env: Env, names: Sequence[str], low: int = 0) -> int:
    """Returns the number of these variables; errors as for `same`, and if none is set."""
    value = same(env, names, low)
    return number(env, names[0], low) if value is None else value


def rank_below(env: Env, names: Sequence[str], world_size: int, size_name: str) -> int:
    """Returns the rank, which must be below the world size of the variable `size_name`."""
    rank = required(env, names)
    if rank >= world_size:
        name = next(name for name in names if name in env)
        raise ValueError(
            f"{name} must be below {size_name}={world_size}, from 0 to {world_size - 1}, got {rank}"
        )
    return rank


def split_address(text: str, name: str) -> tuple[str, int]:
    """Returns host and port of `host:port` or `[IPv6]:port`.

    Args:
        text: the address.
        name: variable that contains the address, for the error.

    Raises:
        ValueError: host or port is missing or invalid.
    """
    found = re.fullmatch(r"\s*(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\s:\[\]]+)):(\d+)\s*", text)
    port = int(found[3]) if found else 0
    if found is None or not 1 <= port <= MAX_PORT:
        raise ValueError(
            f"{name} must name host:port, with a port from 1 to {MAX_PORT} and an IPv6 address in"
            f" brackets, got {text!r}"
        )
    return found[1] or found[2], port


def join_address(address: str, ports: range) -> str:
    """Returns the text of an address with its ports, such as `host:29500` or `[::1]:29500-29515`.

    Args:
        address: host name or IP address.
        ports: one port or several.
    """
    host = f"[{address}]" if ":" in address else address
    last = "" if len(ports) == 1 else f"-{ports[-1]}"
    return f"{host}:{ports[0]}{last}"
