"""Lets workers meet as under `horovodrun`, or as TensorFlow's, with any launcher."""

import contextlib
import json
import random
import socket
from collections.abc import Iterator, Sequence


@contextlib.contextmanager
def meeting(hosts: str, address: str, interface: str) -> Iterator[list[dict[str, str]]]:
    """Runs Horovod's rendezvous server in this process for as long as it lasts.

    Args:
        hosts: names and numbers of workers, such as `localhost:2` or `a:1,b:1`.
        address: of this process, as workers reach it.
        interface: network interface of the workers.

    Yields:
        What the environment of each worker says of its place in the job, by rank.
    """
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.gloo_run import create_run_env_vars, create_slot_env_vars
    from horovod.runner.http.http_server import RendezvousServer

    parsed = parse_hosts(hosts)
    slots = get_host_assignments(parsed, sum(host.slots for host in parsed))
    server = RendezvousServer()
    port = server.start()
    try:
        server.init(slots)
        job = create_run_env_vars(address, [interface], port)
        yield [
            {name: str(value) for name, value in (job | create_slot_env_vars(slot)).items()}
            for slot in slots
        ]
    finally:
        server.stop()


def tf_configs(addresses: Sequence[str]) -> list[dict[str, str]]:
    """Returns the environment of each worker of TensorFlow's cluster, by rank.

    Args:
        addresses: of the workers, with ports.
    """
    cluster = {"worker": list(addresses)}
    return [
        {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})}
        for rank in range(len(addresses))
    ]


# Linux gives none of these to who asks for any port: they are still free when they are used.
_PORTS = range(20_000, 32_768)


def free_addresses(count: int) -> list[str]:
    """Returns addresses of this host at ports that are free now.

    Raises:
        OSError: there are not so many.
    """
    found: list[str] = []
    with contextlib.ExitStack() as stack:
        # Drawn by who has no seed: others draw at the same time.
        for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
            if len(found) == count:
                return found
            listener = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                listener.bind(("127.0.0.1", port))
                found.append(f"127.0.0.1:{port}")
    raise OSError(f"no {count} ports between {_PORTS.start} and {_PORTS.stop - 1} are free")
