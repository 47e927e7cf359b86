"""Python interface of this process's engine: lanes to the other ranks, and control messages."""

import contextlib
import ctypes
import json
import struct
from dataclasses import dataclass, field, replace
from typing import Any

from tf_libra.backends.message_header import MessageHeader
from tf_libra.coordination import control_plane
from tf_libra.coordination.control_plane import EngineError as EngineError
from tf_libra.coordination.control_plane import LostRankError as LostRankError
from tf_libra.internal import native
from tf_libra.internal.process_state import STATE
from tf_libra.specs.telemetry import AllReduceRecord, parse_records

SECRET_BYTES = 64
UNIX = "unix:"


# ops/lanes/status.h
_UNAVAILABLE, _DEADLINE_EXCEEDED = 3, 4


@dataclass(frozen=True)
class Address:
    """Address of a rank's listener: a numeric IP address and a port, or a Unix socket.

    Attributes:
        host: the address, or that of the Unix socket.
        port: unused for a Unix socket.
        local: additional Unix socket of the listener, for ranks of its host; "": none.
        machine: equal for ranks that reach each other by Unix sockets; "": unknown.
    """

    host: str
    port: int
    local: str = ""
    machine: str = ""


def interface_address(interface: str) -> str:
    """Returns the numeric address of a network interface such as `eth0`: IPv4, else IPv6.

    Raises:
        EngineError: there is no such interface, or it has no address.
    """
    host = ctypes.c_char_p()
    check_code(native.load().c.TfLibraInterfaceAddress(interface.encode(), ctypes.byref(host)))
    return (host.value or b"").decode()


def listen(
    host: str, ports: tuple[int, int] | None = None, machine: str = "", with_local: bool = False
) -> Address:
    """Starts to listen on `host` alone.

    Args:
        host: a numeric address, or `UNIX` for a Unix socket that only this host reaches.
        ports: first and last allowed port; None lets the system choose one. A Unix socket ignores
            them.
        machine: identifies this host among all hosts.
        with_local: whether to listen on a Unix socket, too, for ranks of the same machine.

    Raises:
        EngineError: no allowed port is free.
    """
    first, last = (0, 0) if ports is None or host == UNIX else ports
    bound, port = _listen(host, first, last, with_local=False)
    local = _listen(UNIX, 0, 0, with_local=True)[0] if with_local else ""
    return Address(bound, port, local, machine)


def _listen(host: str, first: int, last: int, with_local: bool) -> tuple[str, int]:
    bound, port = ctypes.c_char_p(), ctypes.c_int()
    listening = native.load().c.TfLibraListen(
        host.encode(), first, last, int(with_local), ctypes.byref(bound), ctypes.byref(port)
    )
    check_code(listening)
    return (bound.value or b"").decode(), port.value


@dataclass(frozen=True)
class Engine:
    """A running engine, which executes all-reduces on lanes and carries control messages.

    Attributes:
        rank: rank of this process, from 0.
        world_size: number of processes.
        num_lanes: maximum number of threads of an all-reduce.
        ranks_per_host: equal on all hosts; 0 if unknown or hosts differ.
        job: `World.job` of the ranks.
        machine: identity of this machine at the first rendezvous; "": unknown. Lanes are added on
            the grid of that rendezvous.
        number: counts the engines of this process, so that threads can tell them apart.
    """

    rank: int
    world_size: int
    num_lanes: int
    ranks_per_host: int = 0
    job: int = 0
    machine: str = ""
    number: int = field(default=0, compare=False)

    def all_gather(self, message: Any) -> list[Any]:
        """Returns every rank's message, by rank. Messages are JSON values.

        Raises:
            LostRankError: a rank is dead, has aborted, or did not arrive in time.
        """
        mine = MessageHeader("a gathering")
        payload = mine.pack(json.dumps(message, sort_keys=True).encode())
        data, size = ctypes.c_void_p(), ctypes.c_int64()
        check_code(
            native.load().c.TfLibraAllGather(
                payload, len(payload), ctypes.byref(data), ctypes.byref(size)
            )
        )
        packed = ctypes.string_at(data.value or 0, size.value)
        messages: list[Any] = []
        at = 0
        while at < len(packed):
            (length,) = struct.unpack_from("<Q", packed, at)
            theirs, body = MessageHeader.unpack(packed[at + 8 : at + 8 + length])
            mine.compare(self.rank, theirs, len(messages))
            messages.append(json.loads(body))
            at += 8 + length
        return messages

    def broadcast(
        self, message: Any = None, *, kind: str = "a broadcast", sync_point: str = ""
    ) -> Any:
        """Returns rank 0's message and ignores those of other ranks. Errors as for `all_gather`."""
        mine = json.dumps(message, sort_keys=True).encode()
        return json.loads(self._broadcast(mine, MessageHeader(kind, sync_point)))

    def broadcast_bytes(self, payload: bytes) -> bytes:
        """Returns rank 0's bytes, at most 63 MiB. Errors as for `all_gather`."""
        return self._broadcast(payload, MessageHeader("a broadcast"))

    def _broadcast(self, body: bytes, mine: MessageHeader) -> bytes:
        payload = mine.pack(body)
        data, size = ctypes.c_void_p(), ctypes.c_int64()
        check_code(
            native.load().c.TfLibraBroadcast(
                payload, len(payload), ctypes.byref(data), ctypes.byref(size)
            )
        )
        theirs, body = MessageHeader.unpack(ctypes.string_at(data.value or 0, size.value))
        mine.compare(self.rank, theirs, 0)
        return body

    def grow(self, addresses: list[Address], secret: bytes, num_lanes: int) -> "Engine":
        """Connects more lanes, up to `num_lanes`, and returns the engine with them.

        Every rank must call it at the same position in the sequence of messages, after `listen`.
        Running all-reduces continue.

        Args:
            addresses: addresses of all ranks' new listeners, by rank.
            secret: secret of this exchange, equal on every rank and used only once.
            num_lanes: new number of lanes, above the current one.

        Raises:
            EngineError: a rank is lost or did not arrive in time, or this process lacks threads or
                connections. The engine ends on all ranks.
        """
        assert len(secret) == SECRET_BYTES, len(secret)
        check_code(native.load().c.TfLibraGrow(*_arrays(addresses), secret, num_lanes))
        return replace(self, num_lanes=num_lanes)

    def await_read(self, seconds: float) -> tuple[int, str] | None:
        """Returns rank and name of a one-sided receive of another rank, each once.

        Args:
            seconds: how long to wait at most; then it returns None.

        Raises:
            EngineError: the engine has ended.
        """
        peer, name = ctypes.c_int(), ctypes.c_char_p()
        check_code(
            native.load().c.TfLibraAwaitRead(seconds, ctypes.byref(peer), ctypes.byref(name))
        )
        return None if peer.value < 0 else (peer.value, (name.value or b"").decode())

    def set_step(self, step: int) -> None:
        """Sets the step number in telemetry and messages."""
        check_code(native.load().c.TfLibraSetStep(step))

    def end_step(self, step: int) -> None:
        """Records that a step was completed; see `Control`."""
        native.load().c.TfLibraSetStep(step + 1)  # an engine that has ended says so to the next

    def omit_zeros(self, omits: bool) -> None:
        """Sets whether this rank leaves blocks of zeros out of what it sends."""
        check_code(native.load().c.TfLibraOmitZeros(int(omits)))

    def drain_telemetry(self) -> tuple[AllReduceRecord, ...]:
        """Returns the all-reduces since the last call, at most the last 65,536."""
        return drain_telemetry()

    def barrier(self, what: str, function: str, *, quiet: bool = False) -> None:
        """Returns when every rank is at the same point of the same function.

        Raises:
            tf.errors.OpError: another rank all-reduces something else, or is gone.
        """
        from tf_libra.backends import collective_ops  # which needs TensorFlow

        sync_point = f"{what}, {function}"
        # A rank that waits for rank 0's directive reads no lane.
        if self.rank == 0:
            self.broadcast(kind="a barrier", sync_point=sync_point)
        collective_ops.barrier(sync_point, function)
        if self.rank > 0:
            self.broadcast(kind="a barrier", sync_point=sync_point)

    def resume(self) -> None:
        """Does nothing: lanes carry no unrequested messages."""

    def executing(self, what: str) -> contextlib.AbstractContextManager[None]:
        """Does nothing: every all-reduce has its own header and deadline."""
        return contextlib.nullcontext()

    def why_lost(self, error: BaseException) -> str | None:
        """Returns the reason if an error means that a rank is lost, else None."""
        return control_plane.lost(error)

    def abort(self, reason: str) -> None:
        """Broadcasts why this rank aborts, and fails all pending all-reduces."""
        native.load().c.TfLibraAbort(native.message(reason))

    def close(self, why: str = control_plane.CLOSED) -> None:
        """Stops the engine and joins its threads; sends the reason to ranks that continue.

        Raises:
            EngineError: a callback after an all-reduce does not return; its thread stays.
        """
        check_code(native.load().c.TfLibraClose(native.message(why)))


def drain_telemetry() -> tuple[AllReduceRecord, ...]:
    """Returns the running engine's all-reduces since the last call, at most the last 65,536."""
    text = ctypes.c_char_p()
    check_code(native.load().c.TfLibraDrainTelemetry(ctypes.byref(text)))
    return parse_records((text.value or b"{}").decode())


def await_gathers(seconds: float) -> None:
    """Waits for the weights that are gathered in the background (`shard_updates="overlap"`).

    Args:
        seconds: longest wait for one gather.

    Raises:
        EngineError: a gather has failed since the engine started, or has not ended in time.
    """
    check_code(native.load().c.TfLibraAwaitGathers(seconds))


def rounding_seconds(wire_dtype: str, error_feedback: bool = False) -> float:
    """Measures the seconds in which a core rounds a byte of float32 to a wire dtype, and back."""
    seconds = ctypes.c_double()
    code = native.load().c.TfLibraRoundingSeconds(
        wire_dtype.encode(), int(error_feedback), ctypes.byref(seconds)
    )
    check_code(code)
    return seconds.value


@dataclass
class _Connected:
    """Facts about the running engine that the engine itself does not store."""

    job: int = 0
    machine: str = ""
    number: int = 0


@STATE.value()
def _connected() -> _Connected:
    """Returns the facts about the engine of this process."""
    return _Connected()


def running() -> Engine | None:
    """Returns the engine of this process; None if none runs."""
    if not native.is_loaded():
        return None
    topology = native.engine_place()
    if topology is None:
        return None
    known = _connected()
    return Engine(
        topology.rank,
        topology.world_size,
        topology.num_lanes,
        topology.ranks_per_host,
        known.job,
        known.machine,
        known.number,
    )


def connect(
    rank: int,
    addresses: list[Address],
    secret: bytes,
    num_lanes: int,
    timeout_seconds: float,
    stall_warning_seconds: float,
    liveness_seconds: float = 10.0,
    job: int = 0,
    machine: str = "",
    omits_zeros: bool = True,
) -> Engine:
    """Connects to all ranks of a job. `listen` must have been called; `addresses` are by rank.

    With `omits_zeros` this rank leaves blocks of zeros out of what it sends.

    Raises:
        EngineError: a rank cannot be reached, or did not arrive within `timeout_seconds`.
    """
    assert len(secret) == SECRET_BYTES, len(secret)
    # First, so that threads never take the new engine for an earlier one.
    _connected().job, _connected().machine = job, machine
    _connected().number += 1
    check_code(
        native.load().c.TfLibraConnect(
            rank,
            len(addresses),
            *_arrays(addresses),
            secret,
            num_lanes,
            timeout_seconds,
            stall_warning_seconds,
            liveness_seconds,
        )
    )
    connected = running()
    assert connected is not None
    connected.omit_zeros(omits_zeros)
    return connected


def _arrays(addresses: list[Address]) -> list[Any]:
    """Returns hosts, ports, machines and local sockets as C arrays."""
    return [
        native.text_array([address.host for address in addresses]),
        native.int_array([address.port for address in addresses]),
        native.text_array([address.machine for address in addresses]),
        native.text_array([address.local for address in addresses]),
    ]


def check_code(code: int) -> None:
    """Raises the error of the library's last call, unless its code is 0.

    Raises:
        EngineError: the call has failed; `LostRankError` if a rank is lost or late.
    """
    if code != 0:
        message = native.load().c.TfLibraLastError().decode(errors="replace")
        lost = code in (_UNAVAILABLE, _DEADLINE_EXCEEDED)
        raise LostRankError(message) if lost else EngineError(message)
