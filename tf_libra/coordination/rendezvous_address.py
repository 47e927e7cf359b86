"""Addresses of the rendezvous: where rank 0 listens, and whether a name is one of this host."""

import contextlib
import errno
import ipaddress
import socket
from collections.abc import Sequence

_BACKLOG = 1024


def listen(address: str, ports: Sequence[int], is_one_host: bool) -> list[socket.socket]:
    """Listens at the first free port, at the address of rank 0 if it belongs to this host.

    Args:
        address: host name or IP address of rank 0.
        ports: ports to try.
        is_one_host: whether all ranks are known to run on this host.

    Raises:
        OSError: no port is free.
    """
    wanted = resolve(address)
    is_local_name = address == "localhost" or _is_loopback_literal(address)
    if not (is_local_name or is_one_host):
        # A host's own name may be a loopback address on the host itself.
        wanted = [
            candidate for candidate in wanted if not ipaddress.ip_address(candidate).is_loopback
        ]
    for port in ports:
        try:
            return _listen_at(wanted, port)
        except OSError as error:
            last = error
    raise last


def resolve(address: str) -> list[str]:
    """Returns the IP addresses of a host; none if its name is unknown."""
    try:
        found = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return sorted({str(info[4][0]) for info in found if "%" not in str(info[4][0])})


def _is_loopback_literal(address: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(address).is_loopback
    return False


def _listen_at(addresses: Sequence[str], port: int) -> list[socket.socket]:
    found = []
    in_use: OSError | None = None
    for address in addresses:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            found.append(socket.create_server((address, port), family=family, backlog=_BACKLOG))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                in_use = error
    if in_use is not None:
        for listener in found:
            listener.close()
        raise in_use
    if found:
        return found
    # The address belongs to no interface of this host, as behind address translation.
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return [
                socket.create_server(
                    ("", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True
                )
            ]
    return [socket.create_server(("", port), backlog=_BACKLOG)]


def is_of_this_host(address: str) -> bool:
    """Returns whether this host can listen at one of the IP addresses of a host name."""
    for resolved in resolve(address):
        family = socket.AF_INET6 if ":" in resolved else socket.AF_INET
        with contextlib.suppress(OSError), socket.socket(family) as probe:
            probe.bind((resolved, 0))
            return True
    return False


def start_remedy(endpoint: str, hosts: Sequence[str]) -> str:
    """Returns what a user can do if ranks have not met at the start.

    Args:
        endpoint: host and port of rank 0, as shown to the user.
        hosts: IP addresses of that host, as this process resolves its name.
    """
    remedy = (
        f"start all ranks within that time or raise the limit, and let every host reach {endpoint}"
    )
    if hosts and all(ipaddress.ip_address(host).is_loopback for host in hosts):
        return f"{remedy}, a loopback address: on another host it is that host itself"
    return remedy
