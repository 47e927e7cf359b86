"""Values of a launcher's variables: numbers and addresses, checked with the variable's name."""

import re
import zlib
from collections.abc import Mapping, Sequence

MAX_PORT = 65_535
# Ports derived from a job's id. They lie below those that Linux assigns by itself.
_FIRST_PORT, _LAST_PORT = 20_000, 32_000
# Candidates if the launcher names no port, or holds the port that it names.
PORT_CANDIDATES = 16

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
    if value is None and len(names) > 1:
        raise ValueError(f"one of {', '.join(names)} must be set to a whole number from {low}")
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


def host_without_port(env: Env, name: str) -> str:
    """Returns the host name or IP address that a variable has; "" if it is not set.

    Raises:
        ValueError: the value has a port, a scheme or several hosts.
    """
    text = env.get(name, "").strip()
    host = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if re.search(r"[\s,/\[\]]", host) or host.count(":") == 1:
        raise ValueError(
            f"{name} must be a host name or an IP address, without scheme and port, got {text!r}"
        )
    return host


def _port_of(job_id: str) -> int:
    span = (_LAST_PORT - _FIRST_PORT) // PORT_CANDIDATES
    return _FIRST_PORT + zlib.crc32(job_id.encode()) % span * PORT_CANDIDATES


def main_address(env: Env, name: str, default: str, job_id: str) -> tuple[str, int, int]:
    """Returns address, first port and number of ports: MASTER_ADDR and MASTER_PORT, if set.

    Raises:
        ValueError: there is no address, or the port is invalid.
    """
    address = host_without_port(env, "MASTER_ADDR") or default
    if not address:
        raise ValueError(
            f"MASTER_ADDR is not set, and {name} does not tell where rank 0 runs: set MASTER_ADDR"
            " on every rank to the host name or IP address of rank 0"
        )
    if "MASTER_PORT" in env:
        return address, number(env, "MASTER_PORT", 1, MAX_PORT), 1
    return address, _port_of(job_id), PORT_CANDIDATES


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
