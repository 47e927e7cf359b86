"""A cluster in a box: every worker in a network namespace of its own, as if on a host of its own.

    python -m benchmarks.cluster --hosts 4 --rate 5gbit -- python train.py --epochs 1

Hosts are joined by a bridge. Both directions of every host's link are shaped by `tc tbf`, and every
worker has its share of this machine's cores. Workers find each other as under `horovodrun`, by
Horovod's rendezvous server; lanes and Horovod's Gloo use the interface `eth0` of their namespace.
With `--mpich FOLDER`, Horovod runs on the MPICH that `tools/build_horovod.py --mpich FOLDER` has
put there, over TCP alone, without shared memory.

It needs root, and iproute2. What it makes (namespaces, a bridge, links, folders in /etc/netns) is
called `tfl` and the number of its process, and goes with it. If it is killed, the next start
removes what it left.
"""

import contextlib
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from absl import app, flags

from benchmarks import machine
from benchmarks import mpich as mpich_lib
from benchmarks.rendezvous_env import meeting, tf_configs
from tf_libra.internal.parent_death import signal_with_parent

_NETNS = Path("/etc/netns")
# Connections are distinguished by this many values of each of their ports.
_FLOW_BUCKETS = 8
# Made by the process of this number: hosts, the host's ends of links, the bridge.
_OURS = re.compile(r"tfl(\d+)(h\d+|v\d+|br)")
# Of TensorFlow's server on each host.
_TF_PORT = 23456
_MOST_HOSTS = 64
# Depth of a link's token bucket: seconds of its rate, and fewest bytes, which hold a packet before
# segmentation. At 5 Gbit/s a smaller bucket overflows while its timer waits for a busy core.
_BURST_SECONDS, _LEAST_BURST = 0.5e-3, 1 << 17
_RATE = re.compile(r"(\d+(?:\.\d+)?)([kmgt]?)bit")
# When one worker has failed, the others end by themselves; if not, they are ended.
_GRACE_SECONDS = 60.0


class ClusterError(Exception):
    """The cluster cannot be made; one line for the user."""


@dataclass(frozen=True)
class Host:
    """One namespace.

    Attributes:
        name: as workers know the host.
        namespace: as `ip netns` knows it.
        link: this machine's end of the host's link.
        address: IPv4 address of the host's `eth0`.
        cores: which its worker may use.
    """

    name: str
    namespace: str
    link: str
    address: str
    cores: frozenset[int]


def burst_bytes(rate: str) -> int:
    """Returns the most bytes that a link passes immediately after a pause; `tc` checks the rate."""
    found = _RATE.fullmatch(rate)
    bits = float(found[1]) * 1000 ** ("kmgt".find(found[2] or "-") + 1) if found else 0.0
    return max(int(_BURST_SECONDS * bits / 8), _LEAST_BURST)


class Cluster:
    """Hosts that exist while a `with` block runs, and the faults that a network can have.

    Attributes:
        hosts: in the order of ranks.
        address: this machine's address on the bridge.
    """

    def __init__(
        self, num_hosts: int, rate: str | None = None, flow_rate: str | None = None
    ) -> None:
        """Says what is to be made.

        Args:
            num_hosts: from 1 to 64.
            rate: of each link and direction, as `tc` writes it, such as "5gbit"; None: not shaped.
            flow_rate: that one TCP connection may have of a link and direction, where that is
                shaped; None: all of it.

        Raises:
            ClusterError: this machine, or this user, cannot make it.
        """
        reason = why_impossible()
        if reason is not None:
            raise ClusterError(reason)
        if not 1 <= num_hosts <= _MOST_HOSTS:
            raise ClusterError(f"hosts must be from 1 to {_MOST_HOSTS}, got {num_hosts}")
        if flow_rate is not None and rate is None:
            raise ClusterError(f"flow_rate needs rate, got {flow_rate!r} without one")
        self._rate = rate
        self._flow_rate = flow_rate
        own = f"tfl{os.getpid()}"
        self._bridge = f"{own}br"
        # 198.18.0.0/15 is set aside for benchmarks of networks (RFC 2544).
        network = f"198.{18 + os.getpid() // 256 % 2}.{os.getpid() % 256}"
        self.address = f"{network}.254"
        self.hosts = tuple(
            Host(f"host{i}", f"{own}h{i}", f"{own}v{i}", f"{network}.{i + 1}", cores)
            for i, cores in enumerate(machine.shares(num_hosts))
        )
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Cluster":
        remove_stale()
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def popen(
        self, host: Host, command: Sequence[str], env: dict[str, str], **options: object
    ) -> "subprocess.Popen[bytes]":
        """Starts a process on a host, on its cores. It ends with this process, or the cluster."""
        process: subprocess.Popen[bytes] = subprocess.Popen(  # type: ignore[call-overload]
            ["ip", "netns", "exec", host.namespace, *map(str, command)],
            env=env,
            preexec_fn=lambda: _settle(host.cores),
            start_new_session=True,
            **options,
        )
        self._processes.append(process)
        return process

    def set_rate(self, host: Host, rate: str) -> None:
        """Shapes both directions of a host's link again, at a new rate."""
        shape = f"root tbf rate {rate} burst {burst_bytes(rate)} latency 20ms".split()
        _ip("netns", "exec", host.namespace, "tc", "qdisc", "replace", "dev", "eth0", *shape)
        _run("tc", "qdisc", "replace", "dev", host.link, *shape)

    def _limit_flows(self, host: Host, rate: str, flow_rate: str) -> None:
        """A class of its own for each connection that leaves a host, by bits of both its ports.

        Now and then two connections share one, as in clouds that balance by a hash of ports.
        """
        bits = range(_FLOW_BUCKETS)
        mask = f"{2 * (_FLOW_BUCKETS - 1):#x}"  # ports of connections that are made are even
        commands = [
            "qdisc replace dev eth0 root handle 1: htb default 1",
            f"class add dev eth0 parent 1: classid 1:ffff htb rate {rate}",
            f"class add dev eth0 parent 1:ffff classid 1:1 htb rate {flow_rate}",
        ]
        for bit in bits:
            for other in bits:
                number = f"1:{2 + bit * _FLOW_BUCKETS + other:x}"
                ports = f"match ip sport {2 * bit} {mask} match ip dport {2 * other} {mask}"
                commands += [
                    f"class add dev eth0 parent 1:ffff classid {number} htb rate {flow_rate}",
                    f"filter add dev eth0 parent 1: protocol ip u32 {ports} flowid {number}",
                ]
        batch = "\n".join(commands)
        _run("ip", "netns", "exec", host.namespace, "tc", "-batch", "-", text=batch)

    def cut(self, host: Host) -> None:
        """Pulls the cable: nothing goes in or out, and no host is notified."""
        # The bridge forgets the port; the host's own end stays up, as a NIC behind a dead switch.
        _ip("link", "set", host.link, "nomaster")

    def mend(self, host: Host) -> None:
        """Puts the cable back."""
        _ip("link", "set", host.link, "master", self._bridge)

    def reset(self, host: Host, *what: str) -> None:
        """Resets the host's TCP connections, or those that match `what`, a filter of ss(8)."""
        _ip("netns", "exec", host.namespace, "ss", "-K", "-t", "state", "connected", *what)

    def _make(self) -> None:
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("addr", "add", f"{self.address}/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        for host in self.hosts:
            folder = _NETNS / host.namespace
            folder.mkdir(parents=True)
            # Where Horovod forgets the interface it looks up the name of the host.
            names = f"127.0.0.1 localhost\n{host.address} {host.name} {socket.gethostname()}\n"
            (folder / "hosts").write_text(names)
            _ip("netns", "add", host.namespace)
            peer = ["type", "veth", "peer", "name", "eth0", "netns", host.namespace]
            _ip("link", "add", host.link, *peer)
            _ip("link", "set", host.link, "master", self._bridge, "up")
            inside = ["-n", host.namespace]
            _ip(*inside, "addr", "add", f"{host.address}/24", "dev", "eth0")
            _ip(*inside, "link", "set", "lo", "up")
            _ip(*inside, "link", "set", "eth0", "up")
            if self._rate is not None:
                self.set_rate(host, self._rate)
                if self._flow_rate is not None:
                    self._limit_flows(host, self._rate, self._flow_rate)

    def _remove(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        _remove_all_of({os.getpid()})


def why_impossible() -> str | None:
    """Why this machine and user cannot make a cluster, in one line; None if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root: run this as root"
    missing = [program for program in ("ip", "tc", "ss") if shutil.which(program) is None]
    if missing:
        return f"missing on this machine: {', '.join(missing)} (package iproute2)"
    tried = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True)
    return None if tried.returncode == 0 else f"no network namespaces here: {tried.stderr.strip()}"


def remove_stale() -> None:
    """Removes what clusters of processes that have ended without it left behind."""
    owners = {int(match.group(1)) for name in _all_names() if (match := _OURS.fullmatch(name))}
    _remove_all_of({pid for pid in owners if not Path(f"/proc/{pid}").exists()})


def _remove_all_of(owners: set[int]) -> None:
    """Removes namespaces, links and folders by name; what is not there is no matter."""
    for name in _all_names():
        match = _OURS.fullmatch(name)
        if match is None or int(match.group(1)) not in owners:
            continue
        if match.group(2).startswith("h"):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)
            shutil.rmtree(_NETNS / name, ignore_errors=True)
        else:
            subprocess.run(["ip", "link", "delete", name], capture_output=True)


def _all_names() -> set[str]:
    links = {path.name for path in Path("/sys/class/net").iterdir()}
    folders = [path for path in (_NETNS, Path("/run/netns")) if path.is_dir()]
    return links | {path.name for folder in folders for path in folder.iterdir()}


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str, text: str = "") -> None:
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    if done.returncode != 0:
        raise ClusterError(f"`{shlex.join(command)}` failed: {done.stderr.strip()}")


def _settle(cores: frozenset[int]) -> None:
    """In a worker, before its program starts."""
    os.sched_setaffinity(0, cores)
    signal_with_parent(signal.SIGKILL)


@contextlib.contextmanager
def rank_environments(
    cluster: Cluster, workers_per_host: int = 1
) -> Iterator[list[dict[str, str]]]:
    """Yields the environment that places each host's workers in a new job, by rank.

    The workers can meet for as long as it lasts. Those of one host have ranks in a row.
    """
    hosts = ",".join(f"{host.name}:{workers_per_host}" for host in cluster.hosts)
    with meeting(hosts, cluster.address, "eth0") as found:
        yield [variables | {"TF_LIBRA_INTERFACE": "eth0"} for variables in found]


def tf_environments(cluster: Cluster) -> list[dict[str, str]]:
    """Returns the environment that places each host's worker in TensorFlow's cluster, by rank."""
    configs = tf_configs([f"{host.address}:{_TF_PORT}" for host in cluster.hosts])
    return [variables | {"TF_LIBRA_INTERFACE": "eth0"} for variables in configs]


def start_mpiexec(
    cluster: Cluster, command: Sequence[str], env: dict[str, str], mpich: Path, scratch: Path
) -> "subprocess.Popen[bytes]":
    """Starts one worker per host under MPICH's mpiexec, which is what is returned.

    Args:
        cluster: where.
        command: of each worker.
        env: of each worker, to which `mpich.environment_on_hosts` adds.
        mpich: folder made by `tools/build_horovod.py --mpich`.
        scratch: folder for mpiexec's way into the namespaces.
    """
    enter = scratch / "enter"
    enter.write_text(mpich_lib.enter_script(cluster.hosts))
    enter.chmod(0o755)
    launcher = mpich_lib.mpiexec(mpich, enter, cluster._bridge, cluster.hosts)
    process = subprocess.Popen(
        [*launcher, *command],
        env=env | mpich_lib.environment_on_hosts(mpich, env),
        stdin=subprocess.DEVNULL,
        preexec_fn=lambda: _settle(frozenset(os.sched_getaffinity(0))),
        start_new_session=True,
    )
    cluster._processes.append(process)
    return process


def wait(processes: Sequence["subprocess.Popen[bytes]"]) -> int:
    """Waits for all; the first exit status that is not 0, else 0. Who outlives it long is ended."""
    failed_at = None
    while any(process.poll() is None for process in processes):
        failed = [process.returncode for process in processes if process.returncode]
        if failed and failed_at is None:
            failed_at = time.monotonic()
        if failed_at is not None and time.monotonic() > failed_at + _GRACE_SECONDS:
            for process in processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
        time.sleep(0.05)
    return next((process.returncode for process in processes if process.returncode), 0)


def run(
    num_hosts: int,
    rate: str | None,
    command: Sequence[str],
    env: dict[str, str],
    mpich: Path | None = None,
    flow_rate: str | None = None,
    tf_config: bool = False,
) -> int:
    """Runs a job of one worker per host to its end; returns its exit status."""
    with Cluster(num_hosts, rate, flow_rate) as cluster, tempfile.TemporaryDirectory() as scratch:
        if mpich is not None:
            return wait([start_mpiexec(cluster, command, env, mpich, Path(scratch))])
        with (
            contextlib.nullcontext(tf_environments(cluster))
            if tf_config
            else rank_environments(cluster) as found
        ):
            return wait(
                [
                    cluster.popen(host, command, env | variables, stdin=subprocess.DEVNULL)
                    for host, variables in zip(cluster.hosts, found, strict=True)
                ]
            )


def _end_on_signal(number: int, _: object) -> None:
    raise SystemExit(128 + number)


def end_on_signals() -> None:
    """Lets this process clean up when a signal ends it."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end_on_signal)


def main(argv: Sequence[str]) -> int:
    if len(argv) < 2:
        raise app.UsageError("say what to run: -- python train.py")
    end_on_signals()
    env = {"PYTHONUNBUFFERED": "1", **os.environ}
    mpich = None if FLAGS.mpich is None else Path(FLAGS.mpich).absolute()
    try:
        return run(FLAGS.hosts, FLAGS.rate, argv[1:], env, mpich, FLAGS.flow_rate, FLAGS.tf_config)
    except ClusterError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


FLAGS = flags.FLAGS

if __name__ == "__main__":
    flags.DEFINE_integer("hosts", 2, "Number of hosts, one worker on each.", 1, _MOST_HOSTS)
    flags.DEFINE_string("rate", None, "Of each link, such as 5gbit; not shaped if not given.")
    flags.DEFINE_string("flow_rate", None, "That one connection may have of it, such as 1gbit.")
    flags.DEFINE_string("mpich", None, "Folder made by tools/build_horovod.py --mpich FOLDER.")
    flags.DEFINE_bool("tf_config", False, "Workers meet as TensorFlow's, by TF_CONFIG.")
    app.run(main)
